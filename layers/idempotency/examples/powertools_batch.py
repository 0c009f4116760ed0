"""The consumer as record handler of Powertools' batch processor.

Run it without Lambda: DATABASE_URL=postgresql://… python powertools_batch.py

    copy of m-1
    copy of m-2
    {'batchItemFailures': []}
"""

# shown from here
import os
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

from grantwire_idempotency import IdempotentConsumer, Message, PostgresStore


def process(message: Message) -> None:
    print(f"copy of {message.id}")


consumer = IdempotentConsumer(PostgresStore(os.environ["DATABASE_URL"]), process, name="audit-copies")
processor = BatchProcessor(event_type=EventType.SQS)  # SqsFifoPartialProcessor for a FIFO queue


def handler(event: dict[str, Any], context: Any) -> Any:
    return process_partial_response(event, consumer.process_record, processor, context)


# shown to here


if __name__ == "__main__":
    records = [{"messageId": name, "body": "{}", "eventSource": "aws:sqs"} for name in ("m-1", "m-2", "m-1")]
    print(handler({"Records": records}, None))
