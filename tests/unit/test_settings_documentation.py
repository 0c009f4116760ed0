"""docs/settings.md and the settings classes have the same variables and defaults."""

from __future__ import annotations

import re

from grantwire.adjustable import ADJUSTABLE
from grantwire.settings import parse_list, variables
from grantwire.workers.leases import LeaseSettings
from tests.support.paths import ROOT
from tests.unit.test_hostile_settings import SETTINGS_CLASSES

# Rows of tables: | `NAME`, `OTHER_NAME` | default | …
ROW = re.compile(r"^\| (?P<names>`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (?P<default>[^|]*?) ?\|", re.MULTILINE)
# The prefixes of the lease variables, with the word for those whose default differs.
PREFIXES = {"ENTITLEMENT_OUTBOX_": "relay", "NOTIFICATION_DELIVERY_": "delivery", "OPERATOR_COMMAND_": "commands"}
LEASE_VARIABLES = {variable.name for variable in variables(LeaseSettings)}
# The documentation describes the default of these in words.
NAME = re.compile(r"`([A-Z]+(?:_[A-Z]+)+)`")
DESCRIBED = {"DATABASE_LISTEN_HOST", "ENTITLEMENT_AUDIT_RETENTION_MONTHS"}


def _page() -> str:
    return (ROOT / "docs" / "settings.md").read_text()


def _documented() -> set[tuple[str, str]]:
    """Return name and default of every documented variable, the lease variables with each prefix."""
    documented = set()
    for row in ROW.finditer(_page()):
        for name in re.findall(r"[A-Z_]+", row["names"]):
            general, _, different = row["default"].strip().partition("; ")
            word, _, other = different.partition(" ")
            prefixes = PREFIXES if name in LEASE_VARIABLES else {"": ""}
            documented |= {
                (prefix + name, other if word and word == named else general) for prefix, named in prefixes.items()
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


def test_column_names_the_parameter_settings_exactly_for_its_variables() -> None:
    """Whoever reads the table knows where a value is set. The lease variables have a sentence of their own."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|[^|]*\|[^|]*\| `Settings` \|", _page(), re.MULTILINE)
    leases = {prefix + name for prefix in PREFIXES for name in LEASE_VARIABLES}
    assert set(rows) == ADJUSTABLE - leases


def test_guide_names_only_settings_of_the_list() -> None:
    """docs/deploy.md explains those that are changed most often."""
    section = (ROOT / "docs" / "deploy.md").read_text().partition("\n### Settings\n")[2].partition("\n### ")[0]
    names = {name for row in re.findall(r"^\| `.*", section, re.MULTILINE) for name in NAME.findall(row.split("|")[1])}
    assert names
    assert names <= ADJUSTABLE
    for example in re.findall(r"\bSettings=([A-Z_]+=[^\s`]+)", _page() + (ROOT / "docs" / "deploy.md").read_text()):
        assert parse_list(example)
