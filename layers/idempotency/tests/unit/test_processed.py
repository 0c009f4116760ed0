"""The adapter with the method names of the source documents (C4, C14)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from grantwire_idempotency import Claim, Key, MemoryStore, ProcessedMessages, RedisStore
from grantwire_idempotency.errors import ConfigError, LeaseLostError
from layers.idempotency.tests.unit.doubles import FakeTime

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_processed_message_has_its_result_and_is_marked_once() -> None:
    """C4: a second worker that marks the same message gets an error."""
    messages = ProcessedMessages(MemoryStore())
    assert not messages.is_processed("m1")
    assert messages.get_processed_result("m1") is None
    messages.mark_processed("m1", {"total": 1})
    assert messages.is_processed("m1")
    assert messages.get_processed_result("m1") == {"total": 1}
    with pytest.raises(LeaseLostError):
        messages.mark_processed("m1", {"total": 2})


def test_message_in_progress_or_failed_is_not_processed() -> None:
    """C4: only a completion counts."""
    store = MemoryStore()
    messages = ProcessedMessages(store)
    claim = store.check(Key("m1"), HOUR)
    assert isinstance(claim, Claim)
    assert not messages.is_processed("m1")
    store.store_failure(claim, "no", HOUR)
    assert not messages.is_processed("m1")
    assert messages.get_processed_result("m1") is None


def test_cleanup_selects_by_age_and_not_by_expiry() -> None:
    """C4, document 001: what was processed before the time is forgotten, although it is live; the rest is not."""
    time = FakeTime()
    started = time.clock()
    messages = ProcessedMessages(
        MemoryStore(clock=time.clock),
        ttl=24 * HOUR,
        now=lambda: START + timedelta(seconds=time.clock() - started),
    )
    for name in ("m0", "m1", "m2"):
        messages.mark_processed(name)
        time.advance(HOUR)
    assert messages.cleanup(START) == 0
    assert messages.cleanup(START + 1.5 * HOUR) == 2
    assert [messages.is_processed(name) for name in ("m0", "m1", "m2")] == [False, False, True]
    messages.mark_processed("m0")


def test_cleanup_needs_an_offset_and_a_store_that_knows_the_age() -> None:
    """C4: Redis keeps no time of completion, so an error says so instead of a 0 that looks like success."""
    with pytest.raises(ConfigError, match="offset"):
        ProcessedMessages(MemoryStore()).cleanup(datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake under test
    with pytest.raises(ConfigError, match="RedisStore cannot select by age"):
        ProcessedMessages(RedisStore(Redis())).cleanup(START)
