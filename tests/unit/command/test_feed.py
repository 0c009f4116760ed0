from __future__ import annotations

import csv
import io
import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from grantwire.events.v1 import EntitlementEvent
from grantwire_cli.nats_events import make_decoder
from tests.support.fake_api import FakeApi, Fault, Reply, error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.fake_api import Call
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

AT = "2026-01-08T07:10:00.000000Z"


def entitlements(first: int, count: int) -> list[dict[str, object]]:
    """Return entitlements of a snapshot."""
    return [
        {"user_id": f'u,"{number}', "stock_keeping_unit": "i", "status": "ACTIVE", "version": number, "updated_at": AT}
        for number in range(first, first + count)
    ]


@pytest.fixture
def snapshot(api: FakeApi) -> FakeApi:
    """An installation with three pages of entitlements."""

    def page(call: Call) -> Reply:
        number = int(call.query.get("after", "0"))
        more = {"next_after": str(number + 1)} if number < 2 else {}
        return Reply(200, {"entitlements": entitlements(number * 10, 10), "changes_after": "cursor", **more})

    api.routes[("GET", "/v1/snapshot")] = page
    return api


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_export_writes_every_entitlement(grantwire: Run, snapshot: FakeApi, home: Path, extension: str) -> None:
    """K7: all pages, in order; the file gets its name when it is complete."""
    file = home / f"all.{extension}"
    result = grantwire("export", str(file), "--json")
    assert (result.code, result.json["entitlements"], result.json["changes_after"]) == (0, 30, "cursor")
    text = file.read_text()
    rows = (
        list(csv.DictReader(io.StringIO(text)))
        if extension == "csv"
        else [json.loads(line) for line in text.splitlines()]
    )
    assert [row["user_id"] for row in rows] == [f'u,"{number}' for number in range(30)]
    assert sorted(path.name for path in home.glob("all.*")) == [file.name]
    assert len(snapshot.calls) == 3
    assert grantwire("export", str(file)).code == 1


def test_interrupted_export_continues(grantwire: Run, snapshot: FakeApi, home: Path) -> None:
    """K7: the next run begins at the last complete page, and a page that was written in part is written again."""
    file = home / "all.csv"
    complete = grantwire("export", "--format", "csv").out
    calls = len(snapshot.calls)
    snapshot.routes[("GET", "/v1/snapshot")], page = (
        lambda call: page(call) if call.query.get("after") != "2" else error(400, "BAD_REQUEST"),
        snapshot.routes[("GET", "/v1/snapshot")],
    )
    assert grantwire("export", str(file)).code == 1
    assert not file.exists()
    with (home / "all.csv.part").open("a") as part:
        part.write("torn")
    snapshot.routes[("GET", "/v1/snapshot")] = page
    assert grantwire("export", str(file)).code == 0
    assert file.read_text() == complete
    assert [call.query.get("after") for call in snapshot.calls[calls:]] == [None, "1", "2", "2"]


def test_part_of_another_installation_is_not_continued(grantwire: Run, snapshot: FakeApi, home: Path) -> None:
    """K7: an export continues only what the same installation and format began."""
    position = {"after": "1", "bytes": 0, "count": 10, "format": "csv", "source": "https://other.example"}
    (home / "all.csv.part").write_text("")
    (home / "all.csv.part.json").write_text(json.dumps(position))
    assert grantwire("export", str(home / "all.csv"), "--json").json["entitlements"] == 30
    assert len(snapshot.calls) == 3


def test_export_whose_part_is_shorter_than_its_position_begins_again(
    grantwire: Run, snapshot: FakeApi, home: Path
) -> None:
    """K7: after a crash of the machine the position can be ahead of the part; the gap must not become NUL bytes."""
    position = {"after": "1", "bytes": 1000, "count": 10, "format": "jsonl", "source": snapshot.url}
    (home / "all.jsonl.part").write_text("{}\n")
    (home / "all.jsonl.part.json").write_text(json.dumps(position))
    assert grantwire("export", str(home / "all.jsonl"), "--json").json["entitlements"] == 30
    lines = (home / "all.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == entitlements(0, 30)


# What a spreadsheet would execute, and texts that only look like it; all are valid ids.
FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\uff1d1",
    "a;=1+1",
    "a; =1+1",
    "a;\u3000@A1",
    "a;' =1",
    "'=1",
    "a=1",
    "a;b",
    "'",
    "it's",
]


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_exported_cell_is_no_formula(grantwire: Run, api: FakeApi, home: Path, extension: str) -> None:
    """G14: neither as a cell, nor as a part of one after a semicolon; the original can be restored."""
    rows = [{**item, "user_id": text} for item, text in zip(entitlements(0, len(FORMULAS)), FORMULAS, strict=True)]
    api.routes[("GET", "/v1/snapshot")] = lambda _: Reply(200, {"entitlements": rows, "changes_after": "cursor"})
    file = home / f"all.{extension}"
    assert grantwire("export", str(file)).code == 0
    if extension == "jsonl":
        assert [json.loads(line)["user_id"] for line in file.read_text().splitlines()] == FORMULAS
        return
    cells = [row["user_id"] for row in csv.DictReader(io.StringIO(file.read_text()))]
    assert [part for cell in cells for part in cell.split(";") if part.lstrip()[0] in "=+-@\uff1d"] == []
    assert [re.sub("(^|;)'", r"\1", cell) for cell in cells] == FORMULAS
    assert cells[FORMULAS.index("a;b")] == "a;b"


@pytest.mark.parametrize("name", ["all.csv.part", "all.csv.part.json"])
@pytest.mark.parametrize("kind", ["link", "hard link", "writable by others", "writable by a group", "named pipe"])
def test_export_does_not_continue_what_another_account_may_have_made(
    grantwire: Run, snapshot: FakeApi, home: Path, name: str, kind: str
) -> None:
    """G14: in a shared folder, it would write into the file that the link names, or export what another one wrote."""
    target, found = home / "target", home / name
    target.write_text("valuable")
    if kind == "link":
        found.symlink_to(target)
    elif kind == "hard link":
        found.hardlink_to(target)
    elif kind == "named pipe":
        os.mkfifo(found)
    else:
        found.write_text("{}")
        found.chmod(0o666 if kind == "writable by others" else 0o660)
    result = grantwire("export", str(home / "all.csv"), "--json")
    assert (result.code, result.error["code"]) == (4, "UNSAFE_FILE")
    assert name in result.error["message"]
    assert target.read_text() == "valuable"
    assert snapshot.calls == []


def change(number: int) -> dict[str, object]:
    """Return a change of the feed."""
    return {
        "event_id": str(number),
        "event_type": "EntitlementGranted",
        "user_id": f"u_{number % 2}",
        "stock_keeping_unit": "i",
        "status": "ACTIVE",
        "version": number,
        "occurred_at": AT,
        "reason": "r",
        "purchase_id": "p",
        "caller": "c",
    }


@pytest.fixture
def feed(api: FakeApi) -> FakeApi:
    """An installation whose feed has a page, and one more behind it."""

    def page(call: Call) -> Reply:
        after = call.query.get("after", "")
        numbers = {"": [1, 2], "now": [3, 4], "c2": [3, 4]}.get(after, [])
        following = {"": "c2", "now": "c4", "c2": "c4"}.get(after, after)
        return Reply(200, {"changes": list(map(change, numbers)), "next_after": following, "has_more": after == ""})

    api.routes[("GET", "/v1/changes")] = page
    api.respond("GET", "/v1/snapshot", {"entitlements": [], "changes_after": "now"})
    return api


def test_tail_begins_now_or_at_the_beginning(grantwire: Run, feed: FakeApi) -> None:
    """T3: JSON Lines in a pipe; the cursor to continue with is printed."""

    def versions(*options: str) -> list[int]:
        result = grantwire("events", "tail", "--no-follow", "--json", *options)
        assert result.code == 0
        return [json.loads(line)["version"] for line in result.out.splitlines()]

    assert versions() == [3, 4]
    assert versions("--from-beginning") == [1, 2, 3, 4]
    assert versions("--after", "c2") == [3, 4]
    assert versions("--from-beginning", "--user", "u_1") == [1, 3]
    assert "--after c4" in grantwire("events", "tail", "--no-follow").err
    assert {call.query["wait"] for call in feed.calls if "wait" in call.query} == {"0"}


def test_tail_waits_while_the_installation_is_away(
    grantwire: Run, feed: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: it continues at the same cursor, so no change is missed or repeated."""
    monkeypatch.setattr("grantwire_cli.commands.events.time.sleep", lambda _seconds: None)
    feed.faults = [Fault(error(503, "UNAVAILABLE", Retry_After="60"))] * 3
    result = grantwire("events", "tail", "--from-beginning", "--limit", "4", "--timeout", "1", "--json")
    assert [json.loads(line)["version"] for line in result.out.splitlines()] == [1, 2, 3, 4]


def test_lost_history_is_explained(grantwire: Run, feed: FakeApi) -> None:
    """T3: 410 ends the command."""
    feed.routes[("GET", "/v1/changes")] = lambda _call: error(410, "GONE", "after is no longer valid")
    result = grantwire("events", "tail", "--after", "old", "--json")
    assert (result.code, result.error["code"]) == (1, "GONE")


def test_events_of_nats_are_decoded_without_generated_code() -> None:
    """T3: all fields of the protocol buffer; what is no event raises ValueError."""
    event = EntitlementEvent(event_id="e", event_type="EntitlementGranted", user_id="ü", version=2**40, source="r")
    event.occurred_at.FromJsonString("2026-01-08T07:10:00.123456Z")
    decode = make_decoder()
    assert decode(event.SerializeToString()) == {
        "event_id": "e",
        "event_type": "EntitlementGranted",
        "occurred_at": "2026-01-08T07:10:00.123456Z",
        "user_id": "ü",
        "source": "r",
        "version": 2**40,
    }
    with pytest.raises(ValueError, match="not an event"):
        decode(b"\xff\xff\xff")
