"""G14: SECURITY.md says what an attacker can do with each scope of a stolen token."""

from __future__ import annotations

import re

from grantwire.clients.scopes import Scope
from tests.support.paths import ROOT


def test_every_scope_has_a_row() -> None:
    """A new scope needs one, with what it allows and what limits it."""
    table = (ROOT / "SECURITY.md").read_text().partition("| stolen |")[2]
    rows = re.findall(r"^\| a token with `([\w:]+)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert sorted(scope for scope, _, _ in rows) == sorted(Scope)
    assert all(can and limits for _, can, limits in rows)
