"""A store of one's own, as a thin layer over another one, and code that works with any store."""

from collections.abc import Callable
from datetime import timedelta

from grantwire_idempotency import (
    CheckResult,
    Claim,
    Duplicate,
    FailMode,
    IdempotencyChecker,
    InProgress,
    Key,
    KeyState,
    MemoryStore,
    Store,
)


class CountingStore:
    """Counts the checks of another store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fail_mode = FailMode.CLOSED
        self.checks = 0

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        self.checks += 1
        return self._store.check(key, ttl, token)

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        self._store.store_result(claim, result, ttl, order_ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        self._store.store_failure(claim, error, ttl)

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        self._store.extend(claim, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        return self._store.get_result(key)

    def cleanup(self) -> int:
        return self._store.cleanup()


def describe(result: CheckResult) -> str:
    match result:
        case Claim():
            return f"new, fence {result.fence}"
        case Duplicate(result=text):
            return f"known: {text}"
        case InProgress():
            return "in progress"


def run_once(store: Store, key: str, work: Callable[[], str]) -> str:
    checked = store.check(Key(key), timedelta(minutes=1))
    if isinstance(checked, Claim):
        store.store_result(checked, work(), timedelta(hours=1))
    return describe(checked)


def main() -> None:
    store = CountingStore(MemoryStore())
    print(run_once(store, "k-1", lambda: '"done"'))
    print(run_once(store, "k-1", lambda: '"again"'))
    checker = IdempotencyChecker(store)
    print(checker.is_processed("k-2"), checker.mark_processing("k-2", timedelta(minutes=1)), store.checks > 2)


if __name__ == "__main__":
    main()
