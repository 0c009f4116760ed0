"""P2: an operator rebuilds by the function or by the command, and both say what they did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from functions.rebuild_read_model.handler import handle, handler
from grantwire.errors import BadRequestError
from grantwire.runtime.lazy import LazyRuntime
from grantwire.runtime.rebuild import RebuildRuntime
from infra.cli import rebuild as command
from infra.local.errors import CommandError
from infra.local.progress import Progress
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import clear, event_of, keep, model, right
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

NOTHING = {"missing": 0, "behind": 0, "wrong": 0, "ahead": 0, "extra": 0}


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def runtime(environ: dict[str, str]) -> Iterator[RebuildRuntime]:
    """What the function works with."""
    runtime = RebuildRuntime.build(environ)
    yield runtime
    runtime.close()


def test_the_function_answers_its_event_file_and_changes_nothing(
    runtime: RebuildRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: a dry run of the comparison; it needs no NATS."""
    clear(rows)
    keep(rows, [right("u", 1)])
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: runtime))
    event = json.loads((ROOT / "infra" / "events" / "rebuild_read_model.json").read_text())
    assert handler(event, None) == {"source": "record", "dry_run": True, "found": NOTHING | {"missing": 1}}
    assert model(rows) == []
    assert not runtime.nats.is_connected
    with pytest.raises(BadRequestError, match="source must be one of record, stream, not None"):
        handler({}, None)


def test_the_function_rebuilds_both_ways(environ: dict[str, str], runtime: RebuildRuntime, rows: Rows) -> None:
    """P2: and both end equal."""
    clear(rows)
    keep(rows, [right("u", 2)])
    with Stream(environ) as stream:
        stream.publish(event_of(right("u", 1)), event_of(right("u", 2)))
    assert handle({"source": "record"}, runtime)["mended"] == 1
    assert model(rows) == [right("u", 2)]
    rows.execute("DELETE FROM user_entitlements")
    report = handle({"source": "stream", "budget": "10s"}, runtime)
    assert (report["changed"], report["complete"]) == (1, True)
    assert model(rows) == [right("u", 2)]
    assert handle({"source": "stream", "from_sequence": 2}, runtime)["events"] == 1


@pytest.mark.usefixtures("_command")
def test_the_command_compares_and_mends(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: what differs, in words; 1 if something impossible is left."""
    clear(rows)
    keep(rows, [right("u", 2)])
    _set(monkeypatch, {name: value for name, value in environ.items() if name != "NATS_URL"})
    order = ["--source", "record"]
    assert command.rebuild([*order, "--dry-run"], Progress()) == 0
    assert "1 missing, 0 behind, 0 wrong, 0 ahead, 0 extra.\nMissing or behind is normal" in capsys.readouterr().out
    assert model(rows) == []
    assert command.rebuild(order, Progress()) == 0
    assert "1 repaired, 0 removed.\n" in capsys.readouterr().out
    assert model(rows) == [right("u", 2)]
    rows.execute("INSERT INTO user_entitlements VALUES ('u', 'never', 'ACTIVE', 1, now())")
    with rows.transaction():
        rows.execute("SELECT FROM user_entitlements FOR UPDATE")
        assert command.rebuild(order, Progress()) == 1
    assert "repeat the command" in capsys.readouterr().out


@pytest.mark.usefixtures("_command")
def test_the_command_replays_and_shows_how_far_it_is(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: a line now and then, and what was left out."""
    clear(rows)
    monkeypatch.setattr(command, "PROGRESS_INTERVAL", 2)
    monkeypatch.setattr("grantwire.read_model.from_stream._BATCH", 1)
    with Stream(environ) as stream:
        stream.publish(*(event_of(right("u", version)) for version in (1, 2, 3, 4)), b"poison")
    _set(monkeypatch, environ)
    order = ["--source", "stream", "--stream", environ["ENTITLEMENT_NATS_STREAM"]]
    assert command.rebuild([*order, "--dry-run"], Progress()) == 0
    assert "4 events would be projected, 1 messages skipped." in capsys.readouterr().out
    assert model(rows) == []
    assert command.rebuild([*order, "--from-sequence", "2"], Progress()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "… message 2 of 5",
        "… message 4 of 5",
        "3 events projected, which changed the read model 3 times, 1 messages skipped.",
        "Messages 2 to 5 of 5.",
    ]
    assert model(rows) == [right("u", 4)]


_NOWHERE = "postgresql://127.0.0.1:1/x"


@pytest.mark.usefixtures("_command")
@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (["--source", "stream"], {"DATABASE_URL": _NOWHERE}, "belong together"),
        (["--source", "record"], {"NATS_URL": "nats://127.0.0.1:1"}, "belong together"),
        (["--source", "record"], {"DATABASE_URL": _NOWHERE}, "temporarily unavailable"),
        (["--source", "record", "--from-sequence", "3"], {"DATABASE_URL": _NOWHERE}, "only for the source"),
        (["--source", "stream"], {"DATABASE_URL": _NOWHERE, "NATS_URL": "nats://127.0.0.1:1"}, "NATS is unreachable"),
        (["--source", "record"], {"DATABASE_URL": _NOWHERE, "PLAINTEXT_ALLOWED": "false"}, "DATABASE_TLS=off needs"),
    ],
)
def test_the_command_explains_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environ: dict[str, str], says: str
) -> None:
    """No traceback: a message and what to do."""
    _set(monkeypatch, {**PLAINTEXT, "NATS_CONNECT_TIMEOUT": "100ms", **environ})
    with pytest.raises(CommandError, match=says):
        command.rebuild(arguments, Progress())


def _set(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
