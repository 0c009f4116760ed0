"""N1: the event's protocol buffer, and the guard against breaking those who consume it."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from grantwire.events.v1 import EntitlementEvent
from infra.local.toolchain.protobuf import PROTO, SOURCE, find_problems

if TYPE_CHECKING:
    from pathlib import Path


def test_the_event_has_the_fields_of_the_contract() -> None:
    """N1: names and numbers; a number is for ever."""
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


def test_what_is_committed_is_in_order() -> None:
    """N1: style, compatibility with the release, and generated code that follows from the source."""
    assert find_problems() == []


@pytest.mark.parametrize(
    ("pattern", "replacement", "complaint"),
    [
        (r"  // Why it changed.*\n  string source = 6;\n", "", 'Previously present field "6" with name "source"'),
        ("int64 version = 8", "string version = 8", "changed type"),
        ("string user_id = 4", "string user_id = 9", "Previously present field"),
    ],
    ids=["a field is removed", "a type changes", "a number changes"],
)
def test_a_breaking_change_is_caught(tmp_path: Path, pattern: str, replacement: str, complaint: str) -> None:
    """N1: whoever was built against the release must still understand us."""
    copy = tmp_path / "proto"
    shutil.copytree(PROTO, copy, ignore=shutil.ignore_patterns("released"))
    source = copy / SOURCE
    changed = re.sub(pattern, replacement, source.read_text())
    assert changed != source.read_text()
    source.write_text(changed)
    assert any(complaint in problem for problem in find_problems(copy))


def test_a_new_field_is_no_problem(tmp_path: Path) -> None:
    """N1: that is how the event grows."""
    copy = tmp_path / "proto"
    shutil.copytree(PROTO, copy, ignore=shutil.ignore_patterns("released"))
    source = copy / SOURCE
    source.write_text(source.read_text().replace("= 8;\n", "= 8;\n\n  // New.\n  string tenant = 9;\n"))
    assert find_problems(copy) == []
