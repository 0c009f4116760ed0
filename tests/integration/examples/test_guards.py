"""The examples of docs/idempotency.md: transaction guard, wrapper, consumer, compensation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency.errors import RejectedError, RetryableError
from tests.support.client import event as api_event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Database
    from tests.integration.conftest import Rows


def test_quick_start(database: Database, sent: list[str]) -> None:
    """A repeated call returns the stored result and has no second effect."""

    def send_mail(invoice: str) -> str:
        sent.append(invoice)
        return f"mail-{len(sent)}"

    # example quick-start
    from grantwire_idempotency import PostgresStore, business_key, idempotent

    @idempotent(PostgresStore(database), key=business_key("invoice-mail", "invoice_id"), name="invoice-mail")
    def handler(event: Mapping[str, Any], context: object) -> dict[str, str]:
        return {"mail_id": send_mail(event["invoice_id"])}

    first = handler({"invoice_id": "2026-001"}, None)  # sends the mail
    again = handler({"invoice_id": "2026-001"}, None)  # sends nothing and returns the same result
    # end of example
    assert first == again == {"mail_id": "mail-1"}
    assert sent == ["2026-001"]


def test_transaction_guard(database: Database, rows: Rows) -> None:
    """The transaction guard gives any handler the guarantee of grant and revoke."""
    rows.execute("CREATE TABLE orders (order_id int GENERATED ALWAYS AS IDENTITY, customer text, total int)")
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    # example transaction-guard
    from grantwire.database import Connection
    from grantwire.entrypoints.http import Request, Response
    from grantwire.idempotency import IdempotencySettings
    from grantwire.settings import load
    from grantwire_idempotency import StoredResponse, TransactionGuard

    guard = TransactionGuard(database, load(IdempotencySettings, {}))

    def take_order(request: Request) -> Response:
        order = request.json_object()

        def work(tx: Connection) -> StoredResponse:
            row = tx.execute(
                "INSERT INTO orders (customer, total) VALUES (%(customer)s, %(total)s) RETURNING order_id", order
            ).fetchone()
            return StoredResponse(201, json.dumps({"order_id": row[0] if row else None}))

        # The RequestIdentity: caller, route, Idempotency-Key header and a hash of the fields.
        return Response.from_stored(guard.run(request.identity(order), work))

    # end of example
    order = api_event(
        "POST", "/orders", headers={"Idempotency-Key": "k1"}, body=json.dumps({"customer": "ann", "total": 5})
    )
    first, again = (take_order(Request.from_api_gateway(order)) for _ in range(2))
    assert (first.status_code, first.body) == (again.status_code, again.body) == (201, '{"order_id": 1}')
    assert again.headers == {"Idempotent-Replayed": "true"}
    assert len(rows.execute("SELECT FROM orders").fetchall()) == 1


def test_wrapper(database: Database, sent: list[str]) -> None:
    """The wrapper guards a Lambda handler with an effect outside the database."""

    def send_mail(to: str, invoice: str) -> str:
        sent.append(f"{invoice} to {to}")
        return f"mail-{len(sent)}"

    # example wrapper
    from grantwire_idempotency import FailMode, PostgresStore, business_key, idempotent

    @idempotent(
        PostgresStore(database),
        key=business_key("invoice-mail", "invoice_id", "to"),
        fail_mode=FailMode.CLOSED,  # if the store is down, do not send; OPEN, the default, would send
        name="mail-invoice",  # part of every key; keep it when you rename the function
    )
    def handler(event: Mapping[str, Any], context: object) -> dict[str, str]:
        return {"mail_id": send_mail(event["to"], event["invoice_id"])}

    # end of example
    order = {"invoice_id": "2026-001", "to": "ann@example.org"}
    assert handler(order, None) == handler(order, None) == {"mail_id": "mail-1"}
    assert handler({**order, "to": "bob@example.org"}, None) == {"mail_id": "mail-2"}
    assert sent == ["2026-001 to ann@example.org", "2026-001 to bob@example.org"]


def test_consumer(database: Database, sent: list[str]) -> None:
    """The consumer retries, reports failures and passes failed messages to the dead-letter hook."""
    dead_letters: list[str] = []
    errors = {"2": RetryableError("the printer is jammed"), "4": RejectedError("no such format")}

    def print_label(parcel: Mapping[str, Any]) -> None:
        if error := errors.get(parcel["id"]):
            raise error
        sent.append(parcel["id"])

    # example consumer
    from datetime import timedelta

    from grantwire_idempotency import Backoff, IdempotentConsumer, Message, PostgresStore, RetryPolicy

    def process(message: Message) -> None:
        print_label(message.payload)

    def save_dead_letter(message: Message, error: Exception) -> None:
        dead_letters.append(f"{message.id}: {error}")

    consumer = IdempotentConsumer(
        PostgresStore(database),
        process,
        name="labels",
        # RejectedError is permanent. Any other error is retried twice.
        retry=RetryPolicy(max_attempts=3, backoff=Backoff(timedelta(0), timedelta(0), timedelta(0), 1, 1)),
        dead_letter=save_dead_letter,
    )
    handler = consumer.handle_sqs  # the event source needs FunctionResponseTypes: [ReportBatchItemFailures]
    # end of example
    batch: dict[str, Any] = {
        "Records": [{"messageId": f"m{n}", "body": json.dumps({"id": str(n)})} for n in (1, 2, 3, 4)]
    }
    assert handler(batch) == {"batchItemFailures": []}
    assert (sent, dead_letters) == (["1", "3"], ["m2: the printer is jammed", "m4: no such format"])
    errors.clear()
    assert handler(batch) == {"batchItemFailures": []}
    assert sent == ["1", "3"]
    for record in batch["Records"]:
        record["messageAttributes"] = {"redrive": {"stringValue": "1", "dataType": "String"}}
    assert handler(batch) == {"batchItemFailures": []}
    assert sent == ["1", "3", "2", "4"]


def test_powertools_batch(database: Database, sent: list[str]) -> None:
    """The consumer works as record handler of Powertools' batch processor."""
    # example powertools-batch
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

    from grantwire_idempotency import IdempotentConsumer, PostgresStore

    consumer = IdempotentConsumer(PostgresStore(database), lambda message: sent.append(message.id), name="audit-copies")
    processor = BatchProcessor(event_type=EventType.SQS)  # SqsFifoPartialProcessor for a FIFO queue

    def handler(event: dict[str, Any], context: Any) -> Any:
        return process_partial_response(event, consumer.process_record, processor, context)

    # end of example
    batch = {"Records": [{"messageId": f"m{n}", "body": "{}", "eventSource": "aws:sqs"} for n in (1, 2, 1)]}
    assert handler(batch, None) == {"batchItemFailures": []}
    assert sent == ["m1", "m2"]


def test_compensation(sent: list[str]) -> None:
    """Compensation undoes the earlier steps in reverse order when a later step fails."""

    def reserve(seat: str) -> str:
        sent.append(f"reserve {seat}")
        return f"reservation of {seat}"

    def charge() -> None:
        raise RejectedError("the card was declined")

    # example compensation
    from grantwire_idempotency import Compensation

    def book(seats: list[str]) -> None:
        with Compensation() as undo:
            for seat in seats:
                reservation = reserve(seat)
                undo.on_failure(sent.append, f"release {reservation}")
            charge()

    # end of example
    with pytest.raises(RejectedError):
        book(["1A", "1B"])
    assert sent == ["reserve 1A", "reserve 1B", "release reservation of 1B", "release reservation of 1A"]


def test_items(sent: list[str]) -> None:
    """C21: each item of a message is remembered."""
    # example items
    from grantwire_idempotency import IdempotentConsumer, MemoryStore, Message

    def pack(item: Message) -> None:
        sent.append(f"{item.id}: {item.payload['sku']}")

    consumer = IdempotentConsumer(
        MemoryStore(),
        pack,
        name="parcels",
        items=lambda message: [(line["id"], line) for line in message.payload["lines"]],
    )
    # end of example
    body = json.dumps({"lines": [{"id": "1", "sku": "pen"}, {"id": "2", "sku": "ink"}]})
    for _ in range(2):
        consumer.process(Message("m1", body=body))
    assert sent == ["m1:1: pen", "m1:2: ink"]


def test_asyncio(sent: list[str]) -> None:
    """C22: a coroutine function with an asynchronous store."""
    # example asyncio
    import asyncio

    from grantwire_idempotency import AsyncMemoryStore, idempotent

    @idempotent(AsyncMemoryStore(), key=lambda order: order, name="ship")
    async def ship(order: str) -> str:
        await asyncio.sleep(0)
        sent.append(order)
        return f"parcel of {order}"

    async def main() -> list[str]:
        return [await ship("o1"), await ship("o1")]

    # end of example
    assert asyncio.run(main()) == ["parcel of o1"] * 2
    assert sent == ["o1"]
