"""pgqueuer, a job queue on the same PostgreSQL, with jobs that do nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from tests.bench.subprocesses import run_in_subprocess

if TYPE_CHECKING:
    from tests.bench.servers import Servers

PGQUEUER = "pgqueuer"
# 500 to 2,000 are equally fast on two cores, and about three times as fast as the default of 10.
BATCH_SIZE = 1_000


class PgQueuer:
    """Queue of pgqueuer in its own database."""

    def __init__(self, servers: Servers) -> None:
        self._url = servers.databases.empty()
        run_in_subprocess(_install, self._url)

    def measure_rate(self, jobs: int) -> float:
        """Enqueue `jobs` jobs, let one worker run all of them, and return the jobs per second."""
        return jobs / float(run_in_subprocess(_drain, self._url, jobs))


async def _install(url: str) -> None:
    from pgqueuer import Queries  # noqa: PLC0415 - imported only in its own process

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await Queries.from_psycopg_connection(connection).install()


# With psycopg, the worker waits a second before its first claim and again after its last job. These waits are not part
# of its speed, so the time is taken from its log: from the first claim to the end of the last job.
_COMPLETED = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       extract(epoch FROM max(created) - min(created) FILTER (WHERE status = 'picked'))::double precision
  FROM pgqueuer_log
"""


async def _drain(url: str, jobs: int) -> float:
    """Enqueue and run the jobs, and return the seconds."""
    from pgqueuer import PgQueuer, Queries, types  # noqa: PLC0415 - as above

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE pgqueuer_log")
        await Queries.from_psycopg_connection(connection).enqueue(["noop"] * jobs, [None] * jobs, [0] * jobs)
        await connection.execute("VACUUM ANALYZE")
        queue = PgQueuer.from_psycopg_connection(connection)
        queue.entrypoint("noop")(_do_nothing)
        await queue.qm.run(
            batch_size=BATCH_SIZE, mode=types.QueueExecutionMode.drain, log_aggregation_interval=timedelta(0)
        )
        done, seconds = await (await connection.execute(_COMPLETED)).fetchone() or (0, 0.0)
    assert done == jobs, f"pgqueuer completed {done} of {jobs} jobs"
    return float(seconds)


async def _do_nothing(_job: object) -> None:
    """Job of the queue."""
