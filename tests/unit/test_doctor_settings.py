"""J3: `doctor --before-deploy` checks the parameter Settings with the code of the functions."""

from __future__ import annotations

import io
import json

import pytest

from grantwire.adjustable import ADJUSTABLE
from grantwire_cli.checks.findings import Level
from infra.local.commands.findings import findings
from infra.local.doctor.settings import check_settings
from infra.local.progress import Progress

DEFAULTS = {
    "ENTITLEMENT_GRACE": "24h",
    "ENTITLEMENT_OUTBOX_BATCH_SIZE": "100",
    "OPERATOR_COMMAND_POLL_INTERVAL": "2s",
    "NATS_TLS_CA": "system",
}


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("ENTITLEMENT_GRACES=1h", ["Settings cannot set 'ENTITLEMENT_GRACES'"]),
        ("ENTITLEMENT_GRACE", ["Settings must be NAME=value"]),
        (
            "ENTITLEMENT_GRACE=1,ENTITLEMENT_OUTBOX_BATCH_SIZE=0,CLIENT_RATE_LIMIT=5",
            ["ENTITLEMENT_GRACE must be a duration", "ENTITLEMENT_OUTBOX_BATCH_SIZE must be between"],
        ),
    ],
)
def test_wrong_names_and_values_are_problems(value: str, messages: list[str]) -> None:
    """Each names the variable."""
    found = list(check_settings(value))
    assert [finding.level for finding in found] == [Level.PROBLEM] * len(messages)
    for finding, message in zip(found, messages, strict=True):
        assert finding.message.startswith(message)


def test_every_adjustable_variable_has_a_parser() -> None:
    """No name of the list is unknown to the check: a value that no variable accepts is a problem for most of them."""
    value = ",".join(f"{name}={DEFAULTS.get(name, '?')}" for name in sorted(ADJUSTABLE))
    assert len(list(check_settings(value))) > len(ADJUSTABLE) / 2


def test_command_checks_only_the_settings() -> None:
    """`grantwire doctor` asks for it; servers and machine are not touched."""
    output = io.StringIO()
    assert findings(["--settings", "CLIENT_RATE_LIMIT=0"], Progress(output)) == 1
    (finding,) = json.loads(output.getvalue())["findings"]
    assert (finding["check"], finding["level"]) == ("settings", "problem")
    listed = ",".join(f"{name}={value}" for name, value in DEFAULTS.items())
    assert findings(["--settings", listed], Progress(io.StringIO())) == 0
