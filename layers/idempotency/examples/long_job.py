"""A long job: it extends its claim while it works, and a paused worker cannot overwrite the work of its successor.

Run it: DATABASE_URL=postgresql://… python long_job.py

    page 1
    page 2
    {'pages': 2}
    {'pages': 2}
"""

# shown from here
import os
from datetime import timedelta
from typing import Any

import psycopg

from grantwire_idempotency import FailMode, PostgresStore, current_claim, entity_key, idempotent

database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)

UPDATE = "UPDATE reports SET pages = %(page)s, fence = %(fence)s WHERE id = %(id)s AND fence <= %(fence)s"


@idempotent(
    PostgresStore(os.environ["DATABASE_URL"]),
    key=entity_key("report", "report_id"),
    name="write-report",  # part of every key; keep it when you rename the function
    lease=timedelta(minutes=2),  # how long a worker that died blocks the key
    fail_mode=FailMode.CLOSED,  # if the store is unavailable, do nothing; OPEN, the default, would run
)
def write_report(job: dict[str, Any]) -> dict[str, int]:
    for page in range(1, job["pages"] + 1):
        current_claim().extend(timedelta(minutes=2))  # LeaseLostError: another worker has the job, stop
        print(f"page {page}")
        database.execute(UPDATE, {"page": page, "id": job["report_id"], "fence": current_claim().fence})
    return {"pages": job["pages"]}


# shown to here


if __name__ == "__main__":
    database.execute("CREATE TABLE IF NOT EXISTS reports (id text PRIMARY KEY, pages int, fence bigint)")
    database.execute("INSERT INTO reports VALUES ('r-1', 0, 0) ON CONFLICT DO NOTHING")
    print(write_report({"report_id": "r-1", "pages": 2}))
    print(write_report({"report_id": "r-1", "pages": 2}))
    database.close()
