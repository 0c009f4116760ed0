"""Settings that nobody would write on purpose: a ConfigError that names the variable, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grantwire.errors import ConfigError
from grantwire.runtime.api import ApiSettings
from grantwire.runtime.bridge import BridgeSettings
from grantwire.runtime.clients import CallerSettings
from grantwire.runtime.delivery import DeliverySettings
from grantwire.runtime.migration import MigrationSettings
from grantwire.runtime.notifications import NotificationListSettings
from grantwire.runtime.rebuild import RebuildSettings
from grantwire.runtime.recorder import RecorderSettings
from grantwire.runtime.redrive import RedriveSettings
from grantwire.runtime.relay import RelaySettings
from grantwire.runtime.sweep import SweepSettings
from grantwire.settings import load, parse_duration, variables

KINDS: list[type[Any]] = [
    ApiSettings,
    BridgeSettings,
    CallerSettings,
    DeliverySettings,
    NotificationListSettings,
    MigrationSettings,
    RebuildSettings,
    RecorderSettings,
    RedriveSettings,
    RelaySettings,
    SweepSettings,
]
# Near to what is meant, and far from it.
VALUES = (
    st.text(st.characters(exclude_categories=()), max_size=50)
    | st.from_regex(r"-?[0-9]{1,400}(\.[0-9]{1,20})?(ms|s|m|h|d|)", fullmatch=True)
    | st.sampled_from(["true", "false", "TRUE", "nan", "inf", "-inf", "1e999", "٣s", "0s", "-1s", "1_000", " ", "\0"])
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_any_environment_is_read_or_refused_by_name(kind: type[Any]) -> None:
    """Every problem is a ConfigError that names its variable; no parser fails in another way."""
    names = [variable.name for variable in variables(kind)]

    @settings(max_examples=30, deadline=timedelta(seconds=5))
    @given(st.dictionaries(st.sampled_from(names), VALUES))
    @example(dict.fromkeys(names, "9" * 400 + "d"))
    @example(dict.fromkeys(names, "9" * 5000))
    @example(dict.fromkeys(names, "nan"))
    def check(environ: dict[str, str]) -> None:
        problems: tuple[str, ...] = ()
        try:
            load(kind, environ)
        except ConfigError as error:
            problems = error.problems
        assert all(any(name in problem for name in names) for problem in problems)

    check()


@pytest.mark.parametrize("value", ["9" * 400 + "d", "99999999999999d"])
def test_a_duration_beyond_counting_is_no_duration(value: str) -> None:
    """O6: not an overflow in the middle of a function's start."""
    with pytest.raises(ValueError, match="longer than anybody can count"):
        parse_duration(value)
