"""A Lambda function behind API Gateway: the order, its key and its response are committed together.

Run it without Lambda: DATABASE_URL=postgresql://… python lambda_api.py

    201 {"order_id": 1}
    201 {"order_id": 1}
    422 {"code": "IDEMPOTENCY_KEY_CONFLICT"}
    422 {"code": "CREDIT_EXCEEDED"}
    400 {"code": "BAD_REQUEST"}
"""

# shown from here
import json
import os
from typing import Any

import psycopg
from psycopg import Connection

from grantwire_idempotency import RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, RetryableError

guard = TransactionGuard(os.environ["DATABASE_URL"])


def take_order(tx: Connection[Any], caller: str, order: dict[str, Any]) -> StoredResponse:
    if order["total"] > 1_000:
        return StoredResponse(422, json.dumps({"code": "CREDIT_EXCEEDED"}))  # final for this key
    row = tx.execute(
        "INSERT INTO lambda_orders (customer, total) VALUES (%s, %s) RETURNING id", (caller, order["total"])
    ).fetchone()
    return StoredResponse(201, json.dumps({"order_id": row[0] if row else None}))


def handler(event: dict[str, Any], _context: object = None) -> dict[str, Any]:
    caller = event["requestContext"]["authorizer"]["principalId"]  # from your own authorizer
    headers = {name.lower(): value for name, value in event["headers"].items()}
    try:
        order = json.loads(event["body"])
        identity = RequestIdentity.create(caller, "POST /orders", headers.get("idempotency-key", ""), order)
        stored = guard.run(identity, lambda tx: take_order(tx, caller, order))
    except (json.JSONDecodeError, BadRequestError):
        return {"statusCode": 400, "body": json.dumps({"code": "BAD_REQUEST"})}
    except KeyConflictError as error:
        return {"statusCode": 422, "body": json.dumps({"code": error.code})}
    except RetryableError as error:
        return {"statusCode": 503, "headers": {"Retry-After": str(error.retry_after)}, "body": ""}
    return {"statusCode": stored.status_code, "body": stored.body}


# shown to here


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS lambda_orders (id serial, customer text, total int)")
    for key, total in (("k1", 5), ("k1", 5), ("k1", 6), ("k2", 5_000), ("", 5)):
        request = {
            "requestContext": {"authorizer": {"principalId": "bob"}},
            "headers": {"Idempotency-Key": key},
            "body": json.dumps({"total": total}),
        }
        response = handler(request)
        print(response["statusCode"], response["body"])
