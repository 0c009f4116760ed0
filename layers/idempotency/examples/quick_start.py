"""A job that sends each invoice once and returns the first result to every repeat.

Run it: DATABASE_URL=postgresql://… python quick_start.py

    mail for 2026-1
    {'mail_id': 'mail-2026-1'}
    {'mail_id': 'mail-2026-1'}
"""

import os
from typing import Any

from grantwire_idempotency import PostgresStore, business_key, idempotent

store = PostgresStore(os.environ["DATABASE_URL"])


@idempotent(store, key=business_key("invoice-mail", "invoice_id"), name="invoice-mail")
def send_invoice(job: dict[str, Any]) -> dict[str, str]:
    print(f"mail for {job['invoice_id']}")
    return {"mail_id": f"mail-{job['invoice_id']}"}


if __name__ == "__main__":
    print(send_invoice({"invoice_id": "2026-1"}))
    print(send_invoice({"invoice_id": "2026-1"}))  # sends nothing and returns the same result
