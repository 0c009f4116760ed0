"""K7, T3: `grantwire import` and `grantwire export` against the deployed batch route and snapshot."""

from __future__ import annotations

import csv
import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.command import Grantwire

USERS = 298
END = "2031-01-01T00:00:00Z"
EARLIER_END = "2030-01-01T00:00:00Z"
COLUMNS = ("operation", "user_id", "stock_keeping_unit", "reason", "purchase_id", "expires_at")
HOLD = "SELECT version FROM entitlements WHERE user_id = %s FOR UPDATE"
COUNT = "SELECT count(*) FROM entitlements WHERE starts_with(user_id, %s)"
EFFECTS = """
SELECT count(*), count(DISTINCT (operation, user_id, stock_keeping_unit))
  FROM entitlement_audit WHERE starts_with(user_id, %s) AND outcome = 'APPLIED'
"""


@pytest.fixture
def prefix() -> str:
    """The beginning of the ids of this test's users."""
    return f"u_{uuid.uuid4().hex[:12]}_"


def test_killed_import_is_resumed_and_exported(
    grantwire: Grantwire, stack: EmbeddedStack, prefix: str, tmp_path: Path
) -> None:
    """K7: an invalid file has no effect; after a SIGKILL each line has one effect; the export is the state."""
    file = tmp_path / "purchases.csv"
    lines = make_lines(prefix)
    write(file, [*lines, {**lines[0], "operation": "delete"}])
    code, refused = grantwire("import", str(file), "--yes")
    assert (code, refused["error"]["code"]) == (1, "INVALID_FILE")
    write(file, lines)
    assert grantwire.result("import", str(file), "--dry-run") == {
        "file": str(file),
        "lines": 300,
        "grant": 298,
        "revoke": 1,
        "extend": 1,
        "removed_ends": 0,
        "dry_run": True,
    }
    with psycopg.connect(stack.database_url, autocommit=True) as tx:
        assert tx.execute(COUNT, (prefix,)).fetchone() == (0,)
        assert grantwire.result("entitlements", "grant", f"{prefix}last", "item1", "--reason", "purchase")
        kill_in_the_middle(grantwire, tx, file, prefix)
        imported = grantwire.result("import", str(file), "--yes")
        assert imported["applied"] + imported["replayed"] == imported["lines"] == 300
        assert tx.execute(EFFECTS, (prefix,)).fetchone() == (301, 301)
    results = [json.loads(line) for line in (tmp_path / "purchases.csv.results.jsonl").read_text().splitlines()]
    assert [(result["line"], result["status_code"]) for result in results] == [(n, 200) for n in range(2, 302)]
    assert grantwire.result("export", str(tmp_path / "state.jsonl"))["changes_after"]
    assert exported(tmp_path / "state.jsonl", prefix) == expected(prefix)


def make_lines(prefix: str) -> list[dict[str, str]]:
    """Return grants, every fourth with an end, then an extension of the first and the revoke of another entitlement."""
    common = {"stock_keeping_unit": "item1", "reason": "migration"}
    grants = [
        common
        | {"operation": "grant", "user_id": f"{prefix}{n}", "purchase_id": f"p{n}"}
        | ({"expires_at": EARLIER_END} if n % 4 == 0 else {})
        for n in range(USERS)
    ]
    extension = {"operation": "extend", "user_id": f"{prefix}0", "purchase_id": "renewal", "expires_at": END}
    revoke = {"operation": "revoke", "user_id": f"{prefix}last", "purchase_id": "refund"}
    return [*grants, common | extension, common | revoke]


def write(file: Path, lines: Sequence[dict[str, str]]) -> None:
    """Write a CSV file with a heading."""
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)


def kill_in_the_middle(grantwire: Grantwire, tx: psycopg.Connection[Any], file: Path, prefix: str) -> None:
    """Kill an import after its first batch. It cannot end before, because its last line waits for a lock."""
    with tx.transaction():
        assert tx.execute(HOLD, (f"{prefix}last",)).fetchone() == (1,)
        process = grantwire.start("import", str(file), "--yes", "--concurrency", "1")
        try:
            assert wait_for(lambda: (tx.execute(COUNT, (prefix,)).fetchone() or (0,))[0] > 1, 30, every=0.01)
        finally:
            process.kill()
        assert process.wait() == -9


def exported(file: Path, prefix: str) -> dict[str, tuple[str, int, str | None]]:
    """Return status, version and end of each entitlement of an export."""
    items = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        item["user_id"]: (item["status"], item["version"], (item.get("expires_at") or "")[:10])
        for item in items
        if item["user_id"].startswith(prefix)
    }


def expected(prefix: str) -> dict[str, tuple[str, int, str]]:
    """Return what the lines lead to, if each has one effect."""
    granted = {f"{prefix}{n}": ("ACTIVE", 1, EARLIER_END[:10] if n % 4 == 0 else "") for n in range(USERS)}
    return granted | {f"{prefix}0": ("ACTIVE", 2, END[:10]), f"{prefix}last": ("REVOKED", 2, "")}
