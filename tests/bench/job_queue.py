"""pgqueuer, a queue on the same PostgreSQL, with jobs that do nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from tests.bench.alone import alone

if TYPE_CHECKING:
    from tests.bench.servers import Servers

PGQUEUER = "pgqueuer"
# 500 to 2,000 are alike on two cores, and about three times as fast as its default of 10.
BATCH = 1_000


class PgQueuer:
    """pgqueuer's queue, in a database of its own, with jobs that do nothing."""

    def __init__(self, servers: Servers) -> None:
        self._url = servers.databases.empty()
        alone(_install, self._url)

    def rate(self, jobs: int) -> float:
        """Add so many jobs and let one worker do all of them; jobs a second."""
        return jobs / float(alone(_drain, self._url, jobs))


async def _install(url: str) -> None:
    from pgqueuer import Queries  # noqa: PLC0415 - only its own process loads it

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await Queries.from_psycopg_connection(connection).install()


# Its worker over psycopg waits a second before it claims for the first time, and some more when all is done. Neither
# tells how fast it works, so it is its own log that does: from the first claim to the last job's end.
_WORKED = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       extract(epoch FROM max(created) - min(created) FILTER (WHERE status = 'picked'))::double precision
  FROM pgqueuer_log
"""


async def _drain(url: str, jobs: int) -> float:
    """How many seconds it took."""
    from pgqueuer import PgQueuer, Queries, types  # noqa: PLC0415 - as above

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE pgqueuer_log")
        await Queries.from_psycopg_connection(connection).enqueue(["noop"] * jobs, [None] * jobs, [0] * jobs)
        await connection.execute("VACUUM ANALYZE")
        queue = PgQueuer.from_psycopg_connection(connection)
        queue.entrypoint("noop")(_nothing)
        await queue.qm.run(batch_size=BATCH, mode=types.QueueExecutionMode.drain, log_aggregation_interval=timedelta(0))
        done, seconds = await (await connection.execute(_WORKED)).fetchone() or (0, 0.0)
    assert done == jobs, f"pgqueuer did {done} of {jobs} jobs"
    return float(seconds)


async def _nothing(_job: object) -> None:
    """The job."""
