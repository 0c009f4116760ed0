"""The calls of a store that most tests begin with, and the base class of the tests."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.stores.interface import Claim, Key

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import CheckResult, Store
    from grantwire_idempotency.conformance.harness import Harness

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)
KEY = Key("order:create:abc-123")


def version(mark: int) -> Key:
    """Return the key of one version of the entity."""
    return Key("order:42", mark=mark)


def claim_key(store: Store, key: Key, ttl: timedelta = MINUTE) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    assert check.key == key
    return check


def complete(store: Store, key: Key, result: str | None, ttl: timedelta = DAY) -> None:
    """Claim and complete a key."""
    store.store_result(claim_key(store, key), result, ttl)


def has_fences(harness: Harness) -> bool:
    """Return whether the claims of the store have fencing numbers."""
    return getattr(harness, "fences", True)


def outcome(check: CheckResult) -> str:
    """Return the type name of a check result."""
    return type(check).__name__


class StoreTests:
    """Tests of one store; a subclass, or a fixture, provides a `harness`."""

    @pytest.fixture
    def store(self, harness: Harness) -> Store:
        """Return an empty store."""
        (store,) = harness.stores(1)
        return store
