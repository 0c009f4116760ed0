from __future__ import annotations

import io
import json
import random
import re
import threading
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.validation import FORBIDDEN_CHARACTERS, MAX_NAME_LENGTH, MAX_REASON_LENGTH
from grantwire_cli.api import Response
from grantwire_cli.bulk import fields
from grantwire_cli.bulk.batches import MAX_BYTES, MAX_ITEMS, make_batches
from grantwire_cli.bulk.fields import LineError, derive_key, parse_item
from grantwire_cli.bulk.imports import Source, Validation, run_import
from grantwire_cli.bulk.lines import Format
from grantwire_cli.bulk.results import ResultFile
from grantwire_cli.bulk.sending import WINDOW, Sender
from grantwire_cli.errors import CommandError
from infra.local.system.processes import wait_until
from tests.support.fake_api import FakeApi, Fault, Reply, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

HEADING = "operation,user_id,stock_keeping_unit,reason,purchase_id"
LINE = {"operation": "grant", "user_id": "u_1", "stock_keeping_unit": "i", "reason": "r", "purchase_id": "p"}


@pytest.fixture
def purchases(home: Path) -> Path:
    """A CSV file with 250 grants, and a revoke and a new grant of the first one."""
    lines = [HEADING, *(f"grant,u_{number},item,purchase,p_{number}" for number in range(250))]
    lines += ["revoke,u_0,item,refund,r_0", "grant,u_0,item,purchase,p_again"]
    path = home / "purchases.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_result_file_is_not_written_through_a_link(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """G14: nothing is sent either."""
    target = purchases.with_name("target")
    target.write_text('{"line": ')  # the beginning of a result, which would be cut off
    purchases.with_name(f"{purchases.name}.results.jsonl").symlink_to(target)
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.code, result.error["code"]) == (4, "UNSAFE_FILE")
    assert target.read_text() == '{"line": '
    assert api.calls == []


def results_of(path: Path) -> list[dict[str, Any]]:
    """Return the results of an import."""
    return [json.loads(line) for line in path.with_name(f"{path.name}.results.jsonl").read_text().splitlines()]


def test_import_applies_each_line_and_writes_its_result(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: batches of at most 100 lines, results in the order of the file."""
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.code, result.json["applied"], result.json["refused"]) == (0, 252, 0)
    assert [record["line"] for record in results_of(purchases)] == list(range(2, 254))
    assert {(record["status_code"], record["code"]) for record in results_of(purchases)} == {(200, None)}
    assert api.entitlements[("u_0", "item")]["version"] == 3
    assert max(len(call.body["items"]) for call in api.calls) == 100


def test_repeated_import_has_no_second_effect(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: without its result file, an import is repeated with the same keys, and each line is replayed."""
    grantwire("import", str(purchases), "--yes")
    applied = list(api.applied)
    purchases.with_name("purchases.csv.results.jsonl").unlink()
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.code, result.json["replayed"], result.json["applied"]) == (0, 252, 0)
    assert api.applied == applied


def test_stopped_import_continues_where_it_stopped(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: lines with a result are not sent again; a result that was written in part is removed."""
    grantwire("import", str(purchases), "--yes")
    results = purchases.with_name("purchases.csv.results.jsonl")
    complete = results.read_bytes()
    results.write_bytes(b"".join(complete.splitlines(keepends=True)[:120]) + b'{"line": 122, "ke')
    sent = len(api.calls)
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.json["applied"], result.json["replayed"]) == (120, 132)
    assert sum(len(call.body["items"]) for call in api.calls[sent:]) == 132
    assert [record["line"] for record in results_of(purchases)] == list(range(2, 254))


def test_results_of_another_file_are_not_continued(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: a changed line is noticed before it is skipped, and a file that is no result file is not overwritten."""
    grantwire("import", str(purchases), "--yes")
    purchases.write_text(purchases.read_text().replace("p_7\n", "p_other\n"))
    sent = len(api.calls)
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.code, result.error["code"]) == (1, "OTHER_RESULTS")
    assert len(api.calls) == sent
    other = purchases.with_name("other.txt")
    for text in ("important", "important\n"):
        other.write_text(text)
        assert grantwire("import", str(purchases), "--yes", "--results", str(other)).code == 1
        assert other.read_text() == text


def test_faults_delay_lines_but_change_nothing(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: 429 and 503 with Retry-After are honoured, also if the batch took effect; each line takes effect once."""
    api.faults = [
        Fault(error(503, "UNAVAILABLE", Retry_After="0"), after_effect=True),
        Fault(error(429, "RATE_LIMITED", Retry_After="0")),
        Fault(error(503, "UNAVAILABLE", Retry_After="0")),
    ]
    result = grantwire("import", str(purchases), "--yes", "--json", "--concurrency", "3")
    assert (result.code, result.json["applied"] + result.json["replayed"]) == (0, 252)
    assert len(api.applied) == 252
    assert api.entitlements[("u_0", "item")]["version"] == 3


def test_limit_of_the_client_is_named_once(
    grantwire: Run, api: FakeApi, purchases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K7: a long import is slowed down all the time, which is said once, with the command that changes it."""
    monkeypatch.setattr("grantwire_cli.bulk.sending.REPORT_SECONDS", 0.0)
    api.faults = [Fault(error(429, "RATE_LIMITED", Retry_After="0"))] * 5
    result = grantwire("import", str(purchases), "--yes")
    assert result.code == 0
    assert result.err.count("`grantwire clients limits` changes them") == 1
    assert "RATE_LIMITED" not in result.err


def test_lasting_outage_stops_the_import(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: after the patience it ends with exit code 3, and says how to continue."""
    api.faults = [Fault(error(503, "UNAVAILABLE", Retry_After="0"))] * 50
    result = grantwire("import", str(purchases), "--yes", "--json", "--patience", "0")
    assert (result.code, result.error["code"]) == (3, "UNAVAILABLE")
    assert "same command again" in result.error["hint"]
    api.faults = []
    assert grantwire("import", str(purchases), "--yes").code == 0


def test_refused_token_stops_the_import(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: exit code 4, without a result for any line."""
    api.faults = [Fault(error(403, "FORBIDDEN"))] * 50
    assert grantwire("import", str(purchases), "--yes").code == 4
    assert results_of(purchases) == []


def test_refused_lines_are_reported(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: a state conflict is the line's result; the other lines are applied, and the exit code is 5."""
    api.entitlements[("u_7", "item")] = {"status": "ACTIVE", "version": 1}
    result = grantwire("import", str(purchases), "--yes", "--json")
    assert (result.code, result.json["refused"], result.json["applied"]) == (5, 1, 251)
    (refused,) = [record for record in results_of(purchases) if record["code"]]
    assert (refused["line"], refused["status_code"], refused["code"]) == (9, 409, "ENTITLEMENT_STATE_CONFLICT")


def test_undecided_lines_are_sent_again(grantwire: Run, api: FakeApi, home: Path) -> None:
    """K7: an item with REQUEST_IN_PROGRESS or 503 is no final result; the decided ones are not sent again."""
    undecided = [{"status_code": 409, "replayed": False, "response": {"code": "REQUEST_IN_PROGRESS", "message": "x"}}]
    undecided += [{"status_code": 503, "replayed": False, "response": {"code": "UNAVAILABLE", "message": "x"}}]
    done = {"status_code": 200, "replayed": False, "response": {"status": "ACTIVE"}}
    responses = [[done, *undecided], [done, done]]
    api.routes[("POST", "/v1/entitlements/batches")] = lambda _call: Reply(200, {"results": responses.pop(0)})
    file = home / "three.jsonl"
    file.write_text("".join(json.dumps(LINE | {"user_id": f"u_{number}"}) + "\n" for number in range(3)))
    assert grantwire("import", str(file), "--yes").code == 0
    assert [len(call.body["items"]) for call in api.calls] == [3, 2]
    assert [item["user_id"] for item in api.calls[1].body["items"]] == ["u_1", "u_2"]


def test_dry_run_and_missing_confirmation_send_nothing(grantwire: Run, api: FakeApi, purchases: Path) -> None:
    """K7: a dry run validates and counts; without a terminal, --yes is required."""
    result = grantwire("import", str(purchases), "--dry-run", "--json")
    assert (result.code, result.json["lines"], result.json["grant"], result.json["revoke"]) == (0, 252, 251, 1)
    assert grantwire("import", str(purchases)).code == 2
    assert api.calls == []
    assert list(purchases.parent.glob("*.results.jsonl")) == []


def test_end_is_removed_only_by_the_word_none(grantwire: Run, api: FakeApi, home: Path) -> None:
    """K7: an empty expires_at of an extension is refused and not sent; removals are counted before they are made."""
    file = home / "renewals.csv"
    lines = [f"{HEADING},expires_at", "extend,u_1,i,r,p_1,2027-01-01T00:00:00Z", "extend,u_2,i,r,p_2,"]
    file.write_text("\n".join(lines))
    refused = grantwire("import", str(file), "--yes")
    assert refused.code == 1
    assert "renewals.csv:3: an extension must have expires_at: the new end, or the word none" in refused.err
    assert api.calls == []
    file.write_text("\n".join(lines) + "none")
    counted = grantwire("import", str(file), "--dry-run", "--json")
    assert (counted.code, counted.json["extend"], counted.json["removed_ends"]) == (0, 2, 1)
    assert "2 lines (2 extend; 1 end removed)" in grantwire("import", str(file)).err
    grantwire("import", str(file), "--yes")
    assert [item["expires_at"] for item in api.calls[0].body["items"]] == ["2027-01-01T00:00:00Z", None]


def test_invalid_file_is_refused_with_its_line_numbers(grantwire: Run, api: FakeApi, home: Path) -> None:
    """K7: every line is validated before the first one is sent."""
    file = home / "bad.csv"
    good = "grant,u_1,i,r,p"
    bad = {
        4: "grant,u_1,i,r",
        5: "sell,u_1,i,r,p",
        6: "grant,,i,r,p",
        7: f"grant,{'u' * 129},i,r,p",
        8: "grant,u\x07,i,r,p",
        9: "grant, u,i,r,p",
        10: 'grant,"u,i,r,p',
    }
    file.write_text("\n".join([HEADING, good, "", *bad.values()]))
    result = grantwire("import", str(file), "--yes")
    assert result.code == 1
    assert re.findall(rf"{re.escape(str(file))}:(\d+):", result.err) == [str(number) for number in bad]
    assert "7 of 8 lines are not valid" in result.err
    assert api.calls == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "The file is empty."),
        (HEADING.encode() + b"\ngrant,u_1,item1,sch\xf6n,p\n", "reason is not valid UTF-8; save the file with this"),
    ],
)
def test_file_that_is_empty_or_has_another_encoding_is_named(
    grantwire: Run, home: Path, content: bytes, problem: str
) -> None:
    """K7: not as missing columns, or as a character that the file does not have."""
    file = home / "bad.csv"
    file.write_bytes(content)
    result = grantwire("import", str(file), "--yes")
    assert result.code == 1
    assert problem in result.err


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_byte_order_mark_is_ignored(grantwire: Run, api: FakeApi, home: Path, extension: str) -> None:
    """K7: spreadsheets write one at the beginning of a file; it is no part of the first field."""
    text = f"{HEADING}\ngrant,u_1,i,r,p\n" if extension == "csv" else json.dumps(LINE)
    file = home / f"purchases.{extension}"
    file.write_text(text, encoding="utf-8-sig")
    assert grantwire("import", str(file), "--yes").code == 0
    assert [item["user_id"] for item in api.calls[0].body["items"]] == ["u_1"]


@pytest.mark.parametrize(
    "text", ["", "operation,user_id\n", f"{HEADING},extra\n", f"{HEADING},reason\n", "\x00\x01\x02", f"{HEADING}\n"]
)
def test_unusable_heading_is_explained(grantwire: Run, home: Path, text: str) -> None:
    """K7: an empty file, missing, unknown and repeated columns."""
    file = home / "bad.csv"
    file.write_text(text)
    result = grantwire("import", str(file), "--yes")
    assert result.code == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts_at": "2027-01-01"}, "starts_at must be a time with a zone"),
        ({"starts_at": 5}, "starts_at must be a time with a zone"),
        ({"expires_at": "2027-02-30T00:00:00Z"}, "expires_at must be a time with a zone"),
        ({"starts_at": "2027-01-02T00:00:00Z", "expires_at": "2027-01-01T00:00:00Z"}, "must be after starts_at"),
        ({"operation": "revoke", "expires_at": "2027-01-01T00:00:00Z"}, "a revoke has no expires_at"),
        ({"operation": "extend", "starts_at": "2027-01-01T00:00:00Z"}, "an extension has no starts_at"),
        ({"operation": "extend"}, "an extension must have expires_at: the new end, or the word none to remove the end"),
        ({"operation": "extend", "expires_at": None}, "an extension must have expires_at"),
        ({"operation": "extend", "expires_at": "None"}, "expires_at must be a time with a zone"),
        ({"expires_at": "none"}, "expires_at must be a time with a zone"),
        ({"starts_at": []}, "starts_at must be a time with a zone"),
        ({"idempotency_key": []}, "idempotency_key must have"),
        ({"idempotency_key": "a, b"}, "idempotency_key must have"),
        ({"idempotency_key": " a"}, "idempotency_key must have"),
        ({"idempotency_key": "k" * 256}, "idempotency_key must have"),
        ({"reason": "r" * 65}, "reason must have at most 64"),
        ({"user_id": 1}, "user_id must be a string"),
        ({"other": "x"}, "unknown field 'other'"),
    ],
)
def test_each_rule_for_a_line_is_checked(change: dict[str, Any], message: str) -> None:
    """K7: the error names the field and what is allowed."""
    with pytest.raises(LineError, match=re.escape(message)):
        parse_item(LINE | change, "n")


def test_rules_for_text_are_those_of_the_api() -> None:
    """K7: what the service refuses, the validation refuses, and nothing else."""
    assert {fields.MAX_LENGTHS[name] for name in ("user_id", "stock_keeping_unit", "purchase_id")} == {MAX_NAME_LENGTH}
    assert fields.MAX_LENGTHS["reason"] == MAX_REASON_LENGTH
    ours, theirs = (re.compile(f"[{characters}]") for characters in (fields.FORBIDDEN_CHARACTERS, FORBIDDEN_CHARACTERS))
    differences = [code for code in range(0x110000) if bool(ours.match(chr(code))) != bool(theirs.match(chr(code)))]
    assert differences == []


def test_key_depends_on_the_content_and_the_name_only() -> None:
    """K7: the order of fields and the zone of a time do not matter; the import's name and each field do."""
    line = LINE | {"expires_at": "2027-01-01T01:00:00+01:00"}
    key = parse_item(line, "n")["idempotency_key"]
    same = dict(reversed(line.items())) | {"expires_at": "2027-01-01T00:00:00Z"}
    assert parse_item(same, "n")["idempotency_key"] == key
    assert parse_item(line, "other")["idempotency_key"] != key
    for name in LINE:
        changed = line | {name: "extend" if name == "operation" else "other"}
        assert parse_item(changed, "n")["idempotency_key"] != key
    assert parse_item(line | {"idempotency_key": "mine"}, "n")["idempotency_key"] == "mine"
    assert re.fullmatch(r"import-[0-9a-f]{64}", derive_key("n", LINE))


def test_batch_has_each_entitlement_once_and_the_limits_of_the_api() -> None:
    """K7: a repeated entitlement, the 101st line and too many bytes begin a new batch."""

    def sizes(items: list[dict[str, Any]]) -> list[int]:
        return [len(batch.items) for batch in make_batches(enumerate(items))]

    assert sizes([LINE, LINE, LINE | {"user_id": "u_2"}]) == [1, 2]
    assert sizes([LINE | {"user_id": f"u_{number}"} for number in range(250)]) == [MAX_ITEMS, MAX_ITEMS, 50]
    large = [LINE | {"user_id": str(number) + "\U0001f600" * 1000} for number in range(100)]
    batches = list(make_batches(enumerate(large)))
    assert max(len(json.dumps(batch.items, ensure_ascii=False).encode()) for batch in batches) <= MAX_BYTES + 1000
    assert sum(len(batch.items) for batch in batches) == 100


class RecordingApi:
    """An API that answers each batch when the test says so, and records what is in flight."""

    def __init__(self) -> None:
        self.in_flight: list[set[str]] = []
        self.order: dict[str, list[int]] = {}
        self.overlaps = 0
        self.most = 0
        self._lock = threading.Lock()
        self._random = random.Random(7)  # noqa: S311  # a repeatable order

    def send(self, _method: str, _path: str, *, body: dict[str, Any]) -> Response:
        """Take effect with a delay, so that other batches overtake this one."""
        users = {item["user_id"] for item in body["items"]}
        with self._lock:
            self.overlaps += sum(bool(users & others) for others in self.in_flight)
            self.in_flight.append(users)
            self.most = max(self.most, len(self.in_flight))
            delay = self._random.choice([0, 0.005, 0.02])
        threading.Event().wait(delay)
        with self._lock:
            for item in body["items"]:
                self.order.setdefault(item["user_id"], []).append(int(item["purchase_id"]))
            self.in_flight.remove(users)
        result = {"status_code": 200, "replayed": False, "response": {}}
        return Response(200, {}, {"results": [result] * len(body["items"])})


def test_lines_of_one_entitlement_keep_their_order(home: Path) -> None:
    """K7: several batches are in flight, but never two with the same entitlement."""
    chosen = random.Random(3)  # noqa: S311  # a repeatable order
    users = [f"new_{number}" if number % 10 else f"old_{chosen.randrange(300)}" for number in range(3000)]
    items = [LINE | {"user_id": user, "purchase_id": str(number)} for number, user in enumerate(users)]
    text = "".join(json.dumps(item) + "\n" for item in items)
    api: Any = RecordingApi()
    results = ResultFile(home / "r.jsonl")
    sender = Sender(api, concurrency=8, patience=60, notify=lambda _text: None)
    with _source(home, text) as source:
        run_import(source, source.validate(), results, sender)
    results.close()
    assert api.overlaps == 0
    assert api.most > 1
    assert all(order == sorted(order) for order in api.order.values())
    assert sum(map(len, api.order.values())) == 3000


class GeneratedFile(io.RawIOBase):
    """A file of many lines that exist only while they are read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.number = 0

    def seek(self, _offset: int, _whence: int = 0) -> int:
        """Begin again."""
        self.number = 0
        return 0

    def readline(self, _size: int | None = -1) -> bytes:
        """Return the next line."""
        if self.number == self._count:
            return b""
        self.number += 1
        return json.dumps(LINE | {"user_id": f"u_{self.number}"}).encode() + b"\n"


@pytest.mark.parametrize("step", ["validate", "send"])
def test_import_needs_constant_memory(home: Path, step: str) -> None:
    """K7: four times the lines need the same memory."""
    concurrency = 2

    def peak(count: int) -> int:
        file = GeneratedFile(count)
        source: Any = Source(file, Format.jsonl, "n")  # type: ignore[arg-type]
        object.__setattr__(source, "state", lambda: (0, 0))
        results = ResultFile(home / f"{count}.jsonl")
        api: Any = RecordingApi()
        window = min(count, concurrency * WINDOW * MAX_ITEMS)

        def send(*_arguments: Any, body: Any) -> Response:
            assert wait_until(lambda: file.number >= window, 60)  # the peak, however fast the threads are
            return Response(200, {}, {"results": [{"status_code": 200, "response": {}} for _item in body["items"]]})

        api.send = send
        tracemalloc.start()
        try:
            if step == "validate":
                assert source.validate().lines == count
            else:
                sender = Sender(api, concurrency=concurrency, patience=60, notify=lambda _text: None)
                run_import(source, Validation((0, 0)), results, sender)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            results.close()

    peak(300)  # what is imported and compiled once
    assert peak(4_000) < peak(1_000) * 1.2 + 100_000


@pytest.mark.parametrize("moment", ["before the first batch", "between two batches", "after the last batch"])
@pytest.mark.parametrize("change", ["added", "changed", "invalid"])
def test_file_that_changes_after_its_validation_is_noticed(home: Path, change: str, moment: str) -> None:
    """K7: no line is sent that was not validated, whether it was added or changed, and the import fails."""
    api: Any = RecordingApi()
    sent: list[str] = []
    # Each line is a batch, because all are of one entitlement, and too long to be read before it is needed.
    padding = " " * io.DEFAULT_BUFFER_SIZE
    lines = [json.dumps(LINE | {"purchase_id": str(number)}) + padding for number in range(3)]
    changed = {
        "added": [*lines, json.dumps(LINE | {"purchase_id": "added"})],
        "changed": [*lines[:2], json.dumps(LINE | {"purchase_id": "changed"})],
        "invalid": [*lines[:2], json.dumps(LINE | {"operation": "sell"})],
    }[change]
    change_after = {"before the first batch": 0, "between two batches": 1, "after the last batch": 3}[moment]

    def write() -> None:
        (home / "source.jsonl").write_text("".join(f"{line}\n" for line in changed))

    def send(*_arguments: Any, body: Any) -> Response:
        sent.extend(item["purchase_id"] for item in body["items"])
        if len(sent) == change_after:
            write()
        return Response(200, {}, {"results": [{"status_code": 200, "response": {}} for _item in body["items"]]})

    api.send = send
    results = ResultFile(home / "r.jsonl")
    with _source(home, "".join(f"{line}\n" for line in lines)) as source:
        validation = source.validate()
        if change_after == 0:
            write()
        with pytest.raises(CommandError) as raised:
            run_import(source, validation, results, Sender(api, concurrency=1, patience=60, notify=print))
    results.close()
    assert raised.value.code == "FILE_CHANGED"
    assert sent == ["0", "1", "2"][: len(sent)]
    assert change_after <= len(sent) <= change_after + 1  # the next line may have been read before the change


def test_results_are_in_the_file_before_the_next_batch_of_an_entitlement_is_sent(home: Path) -> None:
    """K7: a kill loses no result that the import has; results wait for no later batch, and for no full buffer."""
    file = home / "r.jsonl"
    api: Any = RecordingApi()
    recorded: list[int] = []

    def send(*_arguments: Any, body: Any) -> Response:
        if len(body["items"]) == 1:  # the second batch waits for the results of the first one; the third has to wait
            wait_until(lambda: file.read_bytes().count(b"\n") >= MAX_ITEMS, 20)
            recorded.append(file.read_bytes().count(b"\n"))
        return Response(200, {}, {"results": [{"status_code": 200, "response": {}} for _item in body["items"]]})

    api.send = send
    users = [*range(MAX_ITEMS), "last", "last"]
    results = ResultFile(file)
    with _source(home, "".join(json.dumps(LINE | {"user_id": f"u_{user}"}) + "\n" for user in users)) as source:
        run_import(source, source.validate(), results, Sender(api, concurrency=2, patience=60, notify=print))
    results.close()
    assert recorded == [MAX_ITEMS, MAX_ITEMS + 1]


def test_pause_that_the_installation_asks_for_is_not_shortened_by_another_thread() -> None:
    """K7: while all threads pause for Retry-After, another one has a fault without it, and would wait less than 1 s."""
    now, delays, sent = 0.0, list[float](), list[tuple[str, float]]()
    in_flight, pausing = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)
    first_pauses = threading.Event()

    def send(*_arguments: Any, body: Any) -> Response:
        user = body["items"][0]["user_id"]
        sent.append((user, now))
        if [name for name, _time in sent].count(user) > 1:
            return Response(200, {}, {"results": [{"status_code": 200, "response": {}} for _item in body["items"]]})
        in_flight.wait()
        if user == "u_1":
            return Response(429, {"retry-after": "30"}, {"code": "RATE_LIMITED"})
        assert first_pauses.wait(60)
        return Response(503, {}, {"code": "UNAVAILABLE"})

    def sleep(_stop: threading.Event, delay: float) -> bool:
        nonlocal now
        delays.append(delay)
        first_pauses.set()
        pausing.wait()  # both threads are in their pause
        now = 30.0
        return False

    api: Any = RecordingApi()
    api.send = send
    sender = Sender(api, concurrency=2, patience=60, notify=lambda _text: None, clock=lambda: now, sleep=sleep)
    batches = [next(make_batches([(number, LINE | {"user_id": f"u_{number}"})])) for number in (1, 2)]
    assert len(list(sender.send_all(iter(batches)))) == 2
    assert delays == [30.0, 30.0]
    assert sorted(sent) == [("u_1", 0.0), ("u_1", 30.0), ("u_2", 0.0), ("u_2", 30.0)]


@contextmanager
def _source(home: Path, text: str) -> Iterator[Source]:
    path = home / "source.jsonl"
    path.write_text(text)
    with path.open("rb") as file:
        yield Source(file, Format.jsonl, "n")
