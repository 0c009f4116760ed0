from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Return a database connection, as a function creates it once."""
    with closing(Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))) as database:
        yield database


@pytest.fixture
def sent() -> list[str]:
    """Return the list that collects the effects of an example."""
    return []
