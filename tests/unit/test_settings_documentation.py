"""docs/settings.md and the settings classes have the same variables and defaults."""

from __future__ import annotations

import re

from grantwire.settings import variables
from grantwire.workers.leases import LeaseSettings
from tests.support.paths import ROOT
from tests.unit.test_hostile_settings import SETTINGS_CLASSES

# Rows of tables: | `NAME`, `OTHER_NAME` | default | …
ROW = re.compile(r"^\| (?P<names>`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (?P<default>[^|]*?) ?\|", re.MULTILINE)
DELIVERY = "NOTIFICATION_DELIVERY_"
PREFIXES = ("ENTITLEMENT_OUTBOX_", DELIVERY, "OPERATOR_COMMAND_")
LEASE_VARIABLES = {variable.name for variable in variables(LeaseSettings)}
# The documentation describes the default of these in words.
DESCRIBED = {"DATABASE_LISTEN_HOST", "ENTITLEMENT_AUDIT_RETENTION_MONTHS"}


def _documented() -> set[tuple[str, str]]:
    """Return name and default of every documented variable, the lease variables with each prefix."""
    documented = set()
    for row in ROW.finditer((ROOT / "docs" / "settings.md").read_text()):
        for name in re.findall(r"[A-Z_]+", row["names"]):
            prefixes = PREFIXES if name in LEASE_VARIABLES else ("",)
            general, _, of_delivery = row["default"].strip().partition("; delivery ")
            documented |= {
                (prefix + name, of_delivery if of_delivery and prefix == DELIVERY else general) for prefix in prefixes
            }
    return documented


def test_documentation_lists_every_variable_with_its_default() -> None:
    """O6: no variable is missing in docs/settings.md, and none there is unknown."""
    read = {variable for settings_class in SETTINGS_CLASSES for variable in variables(settings_class)}
    documented = {entry for entry in _documented() if not entry[0].startswith("POWERTOOLS_")}
    assert {name for name, _ in documented} == {variable.name for variable in read}
    defaults = {
        (variable.name, variable.default or ("" if variable.optional else "required"))
        for variable in read
        if variable.name not in DESCRIBED
    }
    assert {entry for entry in documented if entry[0] not in DESCRIBED} == defaults
