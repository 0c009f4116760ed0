"""A Lambda function behind SQS: each message prints one label, even if SQS delivers it twice.

Run it without Lambda: DATABASE_URL=postgresql://… python lambda_sqs.py

    label for o-1
    label for o-2
    {'batchItemFailures': []}
"""

import json
import os

from grantwire_idempotency import IdempotentConsumer, Message, PostgresStore


def process(message: Message) -> dict[str, str]:
    order = message.payload["order"]
    print(f"label for {order}")
    return {"label": order}


consumer = IdempotentConsumer(PostgresStore(os.environ["DATABASE_URL"]), process, name="labels")
# The event source needs FunctionResponseTypes: [ReportBatchItemFailures].
handler = consumer.handle

if __name__ == "__main__":
    records = [{"messageId": name, "body": json.dumps({"order": name})} for name in ("o-1", "o-2", "o-1")]
    print(handler({"Records": records}))
