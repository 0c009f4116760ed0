"""A wrong clock of the worker, which every module of the store's package reads."""

from __future__ import annotations

import datetime as dt
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.conformance.blocking import BlockingStore

if TYPE_CHECKING:
    import pytest

    from grantwire_idempotency._internal.stores.interface import Store

_datetime = dt.datetime
_time, _time_ns = time.time, time.time_ns


def set_clock_wrong(monkeypatch: pytest.MonkeyPatch, store: Store, seconds: int) -> None:
    """Let `time.time` and `datetime.now` be wrong by this many seconds.

    `time.time` is wrong everywhere. `datetime` cannot be patched, so it is replaced in the modules of the package that
    defines the store, also if the suite calls it by a BlockingStore.
    """
    replacements = _wrong_clocks(seconds)
    monkeypatch.setattr(time, "time", replacements[id(_time)])
    monkeypatch.setattr(time, "time_ns", replacements[id(_time_ns)])
    own_store = store.wrapped if isinstance(store, BlockingStore) else store
    package = type(own_store).__module__.partition(".")[0]
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    for module in modules:
        for name, value in list(vars(module).items()):
            if module.__name__ != __name__ and id(value) in replacements:
                monkeypatch.setattr(module, name, replacements[id(value)])


def _wrong_clocks(seconds: int) -> dict[int, Any]:
    """Return what replaces each function, class and module that has the time, by the id of the original."""
    wrong_module = ModuleType("datetime")
    wrong_datetime = _wrong_datetime(dt.timedelta(seconds=seconds))
    vars(wrong_module).update(vars(dt), datetime=wrong_datetime)
    return {
        id(_time): lambda: _time() + seconds,
        id(_time_ns): lambda: _time_ns() + seconds * 1_000_000_000,
        id(_datetime): wrong_datetime,
        id(dt): wrong_module,
    }


def _wrong_datetime(error: dt.timedelta) -> type[dt.datetime]:
    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, _datetime)

    class WrongDatetime(_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return _datetime.now(tz) + error

        @classmethod
        def utcnow(cls) -> Any:
            return _datetime.now(dt.UTC).replace(tzinfo=None) + error

    return WrongDatetime
