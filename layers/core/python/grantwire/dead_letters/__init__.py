"""Dead letters: kept until an operator redrives or discards them.

`recorder.Recorder` records the messages that JetStream stopped delivering, each with a copy. It acknowledges an
advisory after the commit, and recording one twice leaves one row (Q1). A message that reached its delivery limit, but
was processed after all, is closed as PROCESSED automatically.

`batches.select_batch` returns what a `commands.DeadLetterCommand` selects next, and `operations.redrive` changes it,
for each of the three kinds (Q2, Q3):
- `outbox`: a FAILED event becomes PENDING again, or DISCARDED, and the later events of its aggregate are published;
  a lost event that is too old to be published again without a person is put back, or DISCARDED (W1);
- `notification`: a notification becomes PENDING again with the same id;
- `nats`: the copy is published to its stream, bytes unchanged, with the message id `<event_id>:redrive:<n>`. The number
  is committed before the publish, so a repeat after a crash uses the same id. The dead letter is closed when JetStream
  has acknowledged the message.
A message whose event the audit does not have is redriven only if it is older than the audit, and with `force` (G1).
Each batch is one transaction with its row in `operator_actions`: who, why, from where and when. Repeating a command is
harmless.

`DeadLetterCommand.parse` raises BadRequestError. Everything else raises RetryableError if PostgreSQL or NATS is
unavailable.

This package exports no names: a function imports the module that it needs.
"""
