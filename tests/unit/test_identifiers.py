from __future__ import annotations

import time
import uuid

from grantwire.identifiers import uuid7


def test_uuid7_is_what_the_rfc_says() -> None:
    """Version, variant, and the time in milliseconds in front."""
    before = time.time_ns() // 1_000_000
    made = [uuid7() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(made)) == 1000
    for one in made:
        assert (one.version, one.variant) == (7, uuid.RFC_4122)
        assert before <= one.int >> 80 <= after
