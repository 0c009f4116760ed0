"""N1: the protocol buffer of the event, and the check that changes are compatible with consumers."""

from __future__ import annotations

import re
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from grantwire.events.encoding import encode_event
from grantwire.events.v1 import EntitlementEvent
from infra.local.toolchain.protobuf import PROTO, RELEASED, SOURCE, find_problems
from tests.support.workers.relay_support import payload

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
        "starts_at": 9,
        "expires_at": 10,
    }


def test_committed_protocol_buffer_has_no_problems() -> None:
    """N1: style, compatibility with the release, and generated code that matches the source."""
    assert find_problems() == []


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"  // Why it changed.*\n  string source = 6;\n", "", 'Previously present field "6" with name "source"'),
        ("int64 version = 8", "string version = 8", "changed type"),
        ("string user_id = 4", "string user_id = 11", "Previously present field"),
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
    source.write_text(source.read_text().replace("= 8;\n", "= 8;\n\n  // New.\n  string tenant = 11;\n"))
    assert find_problems(copy) == []


@pytest.mark.parametrize("event_type", ["EntitlementGranted", "EntitlementExtended"])
def test_consumer_of_the_release_reads_an_event_with_times(event_type: str) -> None:
    """N1, K3: it gets every field that it knows, and passes the others on unchanged."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes()).file:
        pool.Add(file)
    released = message_factory.GetMessageClass(pool.FindMessageTypeByName("grantwire.events.v1.EntitlementEvent"))
    assert "expires_at" not in released.DESCRIPTOR.fields_by_name
    times = {"starts_at": "2027-01-01T00:00:00Z", "expires_at": "2028-01-01T00:00:00Z"}
    plain = payload(uuid.UUID(int=7), 3, event_type=event_type)
    with_times, without_times = encode_event(plain | times), encode_event(plain)
    known = released.FromString(with_times)
    for field in released.DESCRIPTOR.fields:
        assert getattr(known, field.name) == getattr(released.FromString(without_times), field.name)
    assert EntitlementEvent.FromString(known.SerializeToString()).expires_at.ToJsonString() == times["expires_at"]
