"""Any key, any error, the shortest and the longest time to live, and the deletion of what has expired (C4)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.stores.interface import (
    MAX_ERROR_LENGTH,
    MAX_KEY_LENGTH,
    Duplicate,
    Key,
    KeyState,
    KeyStatus,
)
from grantwire_idempotency.conformance.calls import DAY, KEY, MINUTE, StoreTests, claim_key, complete, outcome, version
from grantwire_idempotency.errors import BadRequestError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import Store
    from grantwire_idempotency.conformance.harness import Harness


class LimitConformance(StoreTests):
    """Any key, any error, the shortest and the longest time to live, and the deletion of what has expired (C4)."""

    def test_keys_do_not_collide(self, store: Store) -> None:
        """No key can reach the claim, result or error of another key."""
        plain = [
            "x",
            "X",
            "x ",
            "x:",
            ":x",
            "%",
            "*",
            "x*",
            "é",
            "e\u0301",
            "\\",
            "'",
            "{x}",
            "}x",
            "\\}x",
            "x" * MAX_KEY_LENGTH,
        ]
        entries = [
            f"{kind}:{value}" for kind in ("result", "error", "other", "third", "key", "claim") for value in ("x", "")
        ]
        nested = ["key:key:x", "result:result:x", "key:result:x", "result:key:x", "idempotency:x"]
        keys = [Key(value) for value in (*plain, *entries, *nested)]
        claims = {key: claim_key(store, key) for key in keys}
        for key, claim in claims.items():
            store.store_failure(claim, f"failed {key.value}", DAY)
        for key in keys:
            assert store.get_result(key) == KeyState(KeyStatus.FAILED, error=f"failed {key.value}")
            complete(store, key, f"done {key.value}")
        for key in keys:
            assert store.check(key, MINUTE) == Duplicate(key, f"done {key.value}")

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(microseconds=1), timedelta.min])
    def test_ttl_of_zero_is_one_millisecond(self, harness: Harness, store: Store, ttl: timedelta) -> None:
        """The key does not stay blocked, and the server reports no error."""
        claim = claim_key(store, KEY, ttl)
        store.store_failure(claim, "no", ttl)
        store.store_result(claim_key(store, KEY), "done", ttl)
        harness.advance(timedelta(milliseconds=2))
        assert store.get_result(KEY) is None

    def test_largest_ttl_is_limited(self, harness: Harness, store: Store) -> None:
        """No store overflows."""
        claim = claim_key(store, KEY, timedelta.max)
        store.store_failure(claim, "no", timedelta.max)
        complete(store, KEY, "done", timedelta.max)
        harness.advance(timedelta(days=36_499))
        assert store.check(KEY, timedelta.max) == Duplicate(KEY, "done")
        harness.advance(timedelta(days=2))
        claim_key(store, KEY)

    @pytest.mark.parametrize("result", ["a\x00b", "\ud800"])
    def test_unstorable_result_is_rejected_by_every_store(self, store: Store, result: str) -> None:
        """Nothing changes, and the claim can be completed with another result."""
        claim = claim_key(store, KEY)
        with pytest.raises(BadRequestError, match="NUL or lone surrogates"):
            store.store_result(claim, result, DAY)
        store.store_result(claim, None, DAY)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, None)

    def test_any_error_text_can_be_stored(self, store: Store) -> None:
        """Invalid characters are replaced and long texts are cut, so that storing a failure never fails."""
        store.store_failure(claim_key(store, KEY), "a\x00b\udfffc" + "x" * 10_000, DAY)
        state = store.get_result(KEY)
        assert state is not None
        assert state.error == ("a\ufffdb\ufffdc" + "x" * 10_000)[:MAX_ERROR_LENGTH]

    def test_cleanup_does_not_change_check_results(self, harness: Harness, store: Store) -> None:
        """C4: it deletes only expired entries, and none of those that expire soon."""
        soon = timedelta(hours=2, minutes=30)
        complete(store, Key("live"), "live", soon)
        complete(store, Key("expired completion"), "expired", timedelta(hours=1))
        store.store_failure(claim_key(store, Key("failed")), "no", soon)
        claim_key(store, Key("claimed"), soon)
        claim_key(store, Key("expired claim"), timedelta(hours=1))
        complete(store, version(2), "two", soon)
        claim_key(store, version(3), timedelta(hours=1))
        harness.advance(timedelta(hours=2))
        store.cleanup()
        assert store.cleanup() == 0
        assert store.check(Key("live"), MINUTE) == Duplicate(Key("live"), "live")
        assert store.get_result(Key("failed")) == KeyState(KeyStatus.FAILED, error="no")
        assert outcome(store.check(Key("claimed"), MINUTE)) == "InProgress"
        assert store.check(version(2), MINUTE) == Duplicate(version(2), "two")
        for key in (Key("expired completion"), Key("expired claim"), version(3)):
            claim_key(store, key)
