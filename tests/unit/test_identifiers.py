from __future__ import annotations

import time
import uuid

from grantwire.identifiers import uuid7


def test_uuid7_follows_rfc_9562() -> None:
    """Version and variant are correct, and the first 48 bits are the time in milliseconds."""
    before = time.time_ns() // 1_000_000
    created = [uuid7() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(created)) == 1000
    for identifier in created:
        assert (identifier.version, identifier.variant) == (7, uuid.RFC_4122)
        assert before <= identifier.int >> 80 <= after
