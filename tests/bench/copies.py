"""A filled database that is copied for each measurement, so that every measurement starts with the same rows."""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.servers import Servers

_DURATION = re.compile(r"duration: ([\d.]+) ms")


class CopiedDatabase:
    """Database at `url`, which must have no connections while it is copied."""

    def __init__(self, servers: Servers, url: str) -> None:
        self.url = url
        self._postgres = servers.postgres

    @contextmanager
    def copy(self) -> Iterator[str]:
        """Create a copy that logs the duration of each statement, yield its URL, and drop it."""
        name = f"gw_{uuid.uuid4().hex[:12]}"
        place = urlsplit(self.url)
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        with psycopg.connect(self._postgres.url("postgres"), autocommit=True) as admin:
            admin.execute(create.format(sql.Identifier(name), sql.Identifier(place.path.lstrip("/"))))
            admin.execute(sql.SQL("ALTER DATABASE {} SET log_min_duration_statement = 0").format(sql.Identifier(name)))
            admin.execute("CHECKPOINT")
            try:
                yield place._replace(path=name).geturl()
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def time_longest_statement(self, work: Callable[[], float]) -> tuple[float, float]:
        """Do the work on a copy; return its result, and the milliseconds of its longest statement."""
        before = self._postgres.log.stat().st_size
        result = work()
        with self._postgres.log.open("rb") as log:
            log.seek(before)
            statements = _DURATION.findall(log.read().decode(errors="replace"))
        return result, max(map(float, statements))
