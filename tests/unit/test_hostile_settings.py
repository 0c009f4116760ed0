"""Invalid settings of any kind cause a ConfigError that names the variable, and no other error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grantwire.errors import ConfigError
from grantwire.settings import load, parse_duration, variables
from grantwire.wiring.authentication import AuthenticationSettings
from grantwire.wiring.callers import CallerSettings
from grantwire.wiring.gateway import GatewaySettings
from grantwire.wiring.routes.check_entitlement import CheckSettings
from grantwire.wiring.routes.entitlements import ApiSettings
from grantwire.wiring.routes.list_changes import ChangesSettings
from grantwire.wiring.routes.operate_clients import ClientOperationsSettings
from grantwire.wiring.routes.operations import OperationsSettings
from grantwire.wiring.routes.show_inbox import NotificationListSettings
from grantwire.wiring.routes.show_summary import SummarySettings
from grantwire.wiring.tasks.configure_streams import ConfigurationSettings
from grantwire.wiring.tasks.migrate_database import MigrationSettings
from grantwire.wiring.workers.bridge_events import BridgeSettings
from grantwire.wiring.workers.deliver_notifications import DeliverySettings
from grantwire.wiring.workers.expire_entitlements import ExpireSettings
from grantwire.wiring.workers.record_advisories import RecorderSettings
from grantwire.wiring.workers.relay_outbox import RelaySettings
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsSettings
from grantwire.wiring.workers.sweep_retention import SweepSettings

SETTINGS_CLASSES: list[type[Any]] = [
    ApiSettings,
    AuthenticationSettings,
    BridgeSettings,
    CallerSettings,
    CheckSettings,
    ChangesSettings,
    ClientOperationsSettings,
    ConfigurationSettings,
    DeliverySettings,
    ExpireSettings,
    GatewaySettings,
    NotificationListSettings,
    MigrationSettings,
    OperationsSettings,
    OperatorCommandsSettings,
    RecorderSettings,
    RelaySettings,
    SummarySettings,
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
