"""P2: an operator rebuilds the read model with the function or with `make rebuild`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from functions.rebuild_read_model.handler import handle, handler
from grantwire.errors import BadRequestError
from grantwire.wiring.lazy import LazyRuntime
from grantwire.wiring.tasks.rebuild_read_model import RebuildRuntime
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.operators import rebuild as cli
from tests.support.module_database import database_url
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import (
    ACTOR_AND_REASON,
    clear_tables,
    entitlement,
    event_for,
    insert_entitlements,
    read_model_rows,
)
from tests.support.servers import newest_postgres
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

NO_DIFFERENCES = {"missing": 0, "behind": 0, "wrong": 0, "ahead": 0, "extra": 0}


@pytest.fixture
def runtime(environ: dict[str, str]) -> Iterator[RebuildRuntime]:
    """The runtime of the function."""
    runtime = RebuildRuntime.build(environ)
    yield runtime
    runtime.close()


@newest_postgres
def test_function_handles_its_event_file_and_changes_nothing(
    runtime: RebuildRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: a dry run of the comparison, which needs no NATS."""
    clear_tables(rows)
    insert_entitlements(rows, [entitlement("u", 1)])
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: runtime))
    event = json.loads((ROOT / "infra" / "events" / "rebuild_read_model.json").read_text())
    assert handler(event, None) == {"source": "record", "dry_run": True, "found": NO_DIFFERENCES | {"missing": 1}}
    assert read_model_rows(rows) == []
    assert not runtime.nats.is_connected
    with pytest.raises(BadRequestError, match="source must be one of record, stream, not None"):
        handler({}, None)


@newest_postgres
def test_function_rebuilds_from_both_sources(environ: dict[str, str], runtime: RebuildRuntime, rows: Rows) -> None:
    """P2: with the same result."""
    clear_tables(rows)
    insert_entitlements(rows, [entitlement("u", 2)])
    with Stream(environ) as stream:
        stream.publish(event_for(entitlement("u", 1)), event_for(entitlement("u", 2)))
    assert handle({"source": "record", **ACTOR_AND_REASON}, runtime, "a test")["repaired"] == 1
    assert read_model_rows(rows) == [entitlement("u", 2)]
    rows.execute("DELETE FROM user_entitlements")
    report = handle({"source": "stream", "budget": "10s", **ACTOR_AND_REASON}, runtime, "a test")
    assert (report["changed"], report["complete"]) == (1, True)
    assert read_model_rows(rows) == [entitlement("u", 2)]
    assert handle({"source": "stream", "from_sequence": 2, **ACTOR_AND_REASON}, runtime, "a test")["events"] == 1


@newest_postgres
@pytest.mark.usefixtures("_command")
def test_make_rebuild_compares_and_repairs(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: it prints the differences; exit code 1 if rows are left that no event can explain."""
    clear_tables(rows)
    insert_entitlements(rows, [entitlement("u", 2)])
    _set_environment(monkeypatch, {name: value for name, value in environ.items() if name != "NATS_URL"})
    arguments = ["--source", "record", "--reason", "damaged"]
    assert cli.rebuild([*arguments, "--dry-run"], Progress()) == 0
    assert "1 missing, 0 behind, 0 wrong, 0 ahead, 0 extra.\nMissing or behind is normal" in capsys.readouterr().out
    assert read_model_rows(rows) == []
    assert cli.rebuild(arguments, Progress()) == 0
    assert "1 repaired, 0 removed.\n" in capsys.readouterr().out
    assert read_model_rows(rows) == [entitlement("u", 2)]
    rows.execute("INSERT INTO user_entitlements VALUES ('u', 'never', 'ACTIVE', 1, now())")
    with rows.transaction():
        rows.execute("SELECT FROM user_entitlements FOR UPDATE")
        assert cli.rebuild(arguments, Progress()) == 1
    assert "repeat the command" in capsys.readouterr().out


@newest_postgres
@pytest.mark.usefixtures("_command")
def test_make_rebuild_from_stream_prints_progress(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: it prints the number of skipped messages, too."""
    clear_tables(rows)
    monkeypatch.setattr(cli, "PROGRESS_INTERVAL", 2)
    monkeypatch.setattr("grantwire.read_model.from_stream._BATCH_SIZE", 1)
    with Stream(environ) as stream:
        stream.publish(*(event_for(entitlement("u", version)) for version in (1, 2, 3, 4)), b"not an event")
    _set_environment(monkeypatch, environ)
    arguments = ["--source", "stream", "--stream", environ["ENTITLEMENT_NATS_STREAM"], "--reason", "damaged"]
    assert cli.rebuild([*arguments, "--dry-run"], Progress()) == 0
    assert "4 events would be projected, 1 message skipped, 0 of them not genuine." in capsys.readouterr().out
    assert read_model_rows(rows) == []
    assert cli.rebuild([*arguments, "--from-sequence", "2"], Progress()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "… message 2 of 5",
        "… message 4 of 5",
        "3 events projected, which changed the read model 3 times, 1 message skipped, 0 of them not genuine.",
        "Messages 2 to 5 of 5.",
    ]
    assert read_model_rows(rows) == [entitlement("u", 4)]


_UNREACHABLE_DATABASE = "postgresql://127.0.0.1:1/x"


@pytest.mark.usefixtures("_command")
@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["--source", "stream"], {"DATABASE_URL": _UNREACHABLE_DATABASE}, "belong together"),
        (["--source", "record"], {"NATS_URL": "nats://127.0.0.1:1"}, "belong together"),
        (["--source", "record"], {"DATABASE_URL": _UNREACHABLE_DATABASE}, "temporarily unavailable"),
        (
            ["--source", "record", "--from-sequence", "3"],
            {"DATABASE_URL": _UNREACHABLE_DATABASE},
            "allowed only with source stream",
        ),
        (
            ["--source", "stream"],
            {"DATABASE_URL": _UNREACHABLE_DATABASE, "NATS_URL": "nats://127.0.0.1:1"},
            "NATS is unreachable",
        ),
        (
            ["--source", "record"],
            {"DATABASE_URL": _UNREACHABLE_DATABASE, "PLAINTEXT_ALLOWED": "false"},
            "DATABASE_TLS=off needs",
        ),
    ],
)
def test_make_rebuild_explains_errors(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environ: dict[str, str], message: str
) -> None:
    """A message and what to do, without a traceback."""
    _set_environment(monkeypatch, {**PLAINTEXT, "NATS_CONNECT_TIMEOUT": "100ms", **environ})
    with pytest.raises(CommandError, match=message):
        cli.rebuild([*arguments, "--reason", "damaged"], Progress())


def _set_environment(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
