"""Dead letters: what was given up, kept until an operator sends it again or gives it up for good.

`recorder.Recorder` writes down what JetStream gave up on, with a copy of the message; it acknowledges an advisory after
the commit, and recording one twice leaves one row (Q1). A message that reached its delivery limit and was processed
after all is closed as PROCESSED by itself.

`redrive.DeadLetters` carries out an `orders.DeadLetterCommand` for all three kinds (Q2, Q3):
- `outbox`: a FAILED event becomes PENDING again, or DISCARDED, and its successors flow;
- `notification`: a notification becomes PENDING again under its own id;
- `nats`: the copy goes back to its stream, bytes unchanged, as `<event_id>:redrive:<n>`. The number is committed before
  the publish, so a crash repeats the same id; the letter is closed when JetStream has acknowledged.
Each batch is one transaction together with its row in `operator_actions`: who, why, when. Doing it twice does no harm.

`DeadLetterCommand.parse` raises BadRequestError; the rest raises RetryableError if PostgreSQL or NATS is out of reach.

Only modules are here, no names: a function names the module that it works with.
"""
