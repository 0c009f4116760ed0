"""A receiver of Grantwire's webhooks: it verifies each one and has its effect once.

Run it: python webhook_receiver.py

    204 [('u_1', 'item1', 12, 1, None, '2027-02-01T00:00:00.000000Z')]
    204 [('u_1', 'item1', 12, 1, None, '2027-02-01T00:00:00.000000Z')]
    401 [('u_1', 'item1', 12, 1, None, '2027-02-01T00:00:00.000000Z')]
"""

# shown from here
import sqlite3
from collections.abc import Mapping

from standardwebhooks import Webhook, WebhookVerificationError

SCHEMA = """
CREATE TABLE received (webhook_id TEXT PRIMARY KEY);
CREATE TABLE owned (
  user_id TEXT, sku TEXT, version INTEGER, granted INTEGER, starts_at TEXT, expires_at TEXT, PRIMARY KEY (user_id, sku)
);
"""
# Whether the user has the entitlement after an event, from starts_at to expires_at where the event has them.
GRANTED = {
    "EntitlementGranted": True,
    "EntitlementExtended": True,
    "EntitlementStarted": True,
    "EntitlementExpiring": True,
    "EntitlementExpired": False,
    "EntitlementRevoked": False,
}


def receive(body: bytes, headers: Mapping[str, str], keys: list[str], database: sqlite3.Connection) -> int:
    """Handle one webhook and return the HTTP status. `keys` are the keys that are valid now, two during a rotation."""
    for key in keys:
        try:
            event = Webhook(key).verify(body, dict(headers))  # signature, and a time of at most five minutes ago
            break
        except (WebhookVerificationError, ValueError):  # ValueError: a header is malformed
            continue
    else:
        return 401  # the sender reads its keys again and retries

    if event["event_type"] not in GRANTED:
        return 204  # a type of a later release
    with database:  # one transaction for the id and the effect
        try:
            database.execute("INSERT INTO received (webhook_id) VALUES (?)", (headers["webhook-id"],))
        except sqlite3.IntegrityError:
            return 204  # a repeat: the first one had the effect
        database.execute(
            """INSERT INTO owned VALUES (?, ?, ?, ?, ?, ?)
               ON CONFLICT (user_id, sku) DO UPDATE
               SET version = excluded.version, granted = excluded.granted,
                   starts_at = excluded.starts_at, expires_at = excluded.expires_at
               WHERE excluded.version > owned.version""",  # notifications can arrive out of order
            (
                event["user_id"],
                event["stock_keeping_unit"],
                event["version"],
                GRANTED[event["event_type"]],
                event.get("starts_at"),
                event.get("expires_at"),
            ),
        )
    return 204


# shown to here


if __name__ == "__main__":
    import json
    from datetime import UTC, datetime

    key, forged = "whsec_" + "A" * 40, "whsec_" + "B" * 40
    body = json.dumps(
        {
            "user_id": "u_1",
            "stock_keeping_unit": "item1",
            "version": 12,
            "event_type": "EntitlementGranted",
            "expires_at": "2027-02-01T00:00:00.000000Z",
        }
    )
    with sqlite3.connect(":memory:") as database:
        database.executescript(SCHEMA)
        for signing_key in (key, key, forged):
            now = datetime.now(UTC)
            headers = {
                "webhook-id": "w-1",
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": Webhook(signing_key).sign("w-1", now, body),
            }
            print(receive(body.encode(), headers, [key], database), database.execute("SELECT * FROM owned").fetchall())
