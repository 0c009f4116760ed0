"""N1: the protocol buffer of the event, and the check that changes are compatible with consumers."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from grantwire.events.v1 import EntitlementEvent
from infra.local.toolchain.protobuf import PROTO, SOURCE, find_problems

if TYPE_CHECKING:
    from pathlib import Path


def test_event_has_the_documented_fields() -> None:
    """N1: names and numbers. A number must never change."""
    assert {field.name: field.number for field in EntitlementEvent.DESCRIPTOR.fields} == {
        "event_id": 1,
        "event_type": 2,
        "occurred_at": 3,
        "user_id": 4,
        "stock_keeping_unit": 5,
        "source": 6,
        "source_id": 7,
        "version": 8,
    }


def test_committed_protocol_buffer_has_no_problems() -> None:
    """N1: style, compatibility with the release, and generated code that matches the source."""
    assert find_problems() == []


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"  // Why it changed.*\n  string source = 6;\n", "", 'Previously present field "6" with name "source"'),
        ("int64 version = 8", "string version = 8", "changed type"),
        ("string user_id = 4", "string user_id = 9", "Previously present field"),
    ],
    ids=["removed field", "changed type", "changed number"],
)
def test_breaking_change_is_detected(tmp_path: Path, pattern: str, replacement: str, message: str) -> None:
    """N1: consumers that were built against the release must still understand the event."""
    copy = tmp_path / "proto"
    shutil.copytree(PROTO, copy, ignore=shutil.ignore_patterns("released"))
    source = copy / SOURCE
    changed = re.sub(pattern, replacement, source.read_text())
    assert changed != source.read_text()
    source.write_text(changed)
    assert any(message in problem for problem in find_problems(copy))


def test_new_field_is_compatible(tmp_path: Path) -> None:
    """N1: consumers ignore fields that they do not know."""
    copy = tmp_path / "proto"
    shutil.copytree(PROTO, copy, ignore=shutil.ignore_patterns("released"))
    source = copy / SOURCE
    source.write_text(source.read_text().replace("= 8;\n", "= 8;\n\n  // New.\n  string tenant = 9;\n"))
    assert find_problems(copy) == []
