"""Invalid settings of any kind cause a ConfigError that names the variable, and no other error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grantwire.errors import ConfigError
from grantwire.runtime.api import ApiSettings
from grantwire.runtime.authentication import AuthenticationSettings
from grantwire.runtime.bridge import BridgeSettings
from grantwire.runtime.client_operations import ClientOperationsSettings
from grantwire.runtime.clients import CallerSettings
from grantwire.runtime.delivery import DeliverySettings
from grantwire.runtime.gateway import GatewaySettings
from grantwire.runtime.migration import MigrationSettings
from grantwire.runtime.notifications import NotificationListSettings
from grantwire.runtime.operations import OperationsSettings
from grantwire.runtime.operator_commands import OperatorCommandsSettings
from grantwire.runtime.rebuild import RebuildSettings
from grantwire.runtime.recorder import RecorderSettings
from grantwire.runtime.redrive import RedriveSettings
from grantwire.runtime.relay import RelaySettings
from grantwire.runtime.sweep import SweepSettings
from grantwire.runtime.topology import ConfigurationSettings
from grantwire.settings import load, parse_duration, variables

SETTINGS_CLASSES: list[type[Any]] = [
    ApiSettings,
    AuthenticationSettings,
    BridgeSettings,
    CallerSettings,
    ClientOperationsSettings,
    ConfigurationSettings,
    DeliverySettings,
    GatewaySettings,
    NotificationListSettings,
    MigrationSettings,
    OperationsSettings,
    OperatorCommandsSettings,
    RebuildSettings,
    RecorderSettings,
    RedriveSettings,
    RelaySettings,
    SweepSettings,
]
# Values that are almost valid, and arbitrary ones.
VALUES = (
    st.text(st.characters(exclude_categories=()), max_size=50)
    | st.from_regex(r"-?[0-9]{1,400}(\.[0-9]{1,20})?(ms|s|m|h|d|)", fullmatch=True)
    | st.sampled_from(["true", "false", "TRUE", "nan", "inf", "-inf", "1e999", "٣s", "0s", "-1s", "1_000", " ", "\0"])
)


@pytest.mark.parametrize("settings_class", SETTINGS_CLASSES, ids=lambda settings_class: settings_class.__name__)
def test_any_environment_is_loaded_or_rejected_by_name(settings_class: type[Any]) -> None:
    """Every problem is in a ConfigError and names its variable; parsers raise no other error."""
    names = [variable.name for variable in variables(settings_class)]

    @settings(max_examples=30, deadline=timedelta(seconds=5))
    @given(st.dictionaries(st.sampled_from(names), VALUES))
    @example(dict.fromkeys(names, "9" * 400 + "d"))
    @example(dict.fromkeys(names, "9" * 5000))
    @example(dict.fromkeys(names, "nan"))
    def check(environ: dict[str, str]) -> None:
        problems: tuple[str, ...] = ()
        try:
            load(settings_class, environ)
        except ConfigError as error:
            problems = error.problems
        assert all(any(name in problem for name in names) for problem in problems)

    check()


@pytest.mark.parametrize("value", ["9" * 400 + "d", "99999999999999d"])
def test_too_long_duration_is_rejected(value: str) -> None:
    """O6: it is a ValueError with a clear text, not an OverflowError."""
    with pytest.raises(ValueError, match="must be at most 999999999d"):
        parse_duration(value)
