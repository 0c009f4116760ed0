"""One database for all tests of a file: import `database_url`, which replaces the fixture of the same name.

A test of such a file deletes the rows that it does not expect, or writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Databases


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """Address of a migrated database that only the tests of this file use, for the role of the functions."""
    url = databases.migrated()
    yield url
    databases.drop(url)
