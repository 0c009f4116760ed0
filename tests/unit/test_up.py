"""G9: what `make up` prints."""

from __future__ import annotations

import io
import os
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.commands import up
from infra.local.progress import Progress
from infra.local.stack import selection


@pytest.mark.parametrize(("uid", "warned"), [(0, True), (1000, False)])
def test_root_is_warned_before_anything_starts(uid: int, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """G9: the functions would run as root; the warning comes while the command can still be interrupted."""
    output = io.StringIO()
    printed_at_start: list[str] = []
    addresses = ("api_url", "database_url", "nats_url", "nats_reader_url", "emulator_url")
    stack = SimpleNamespace(up=lambda: printed_at_start.append(output.getvalue()), **dict.fromkeys(addresses, "x"))

    def select_stack(*_: Any) -> Any:
        return stack

    monkeypatch.setattr(selection, "select_stack", select_stack)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert up.up([], Progress(output)) == 0
    assert ["you are root" in text for text in printed_at_start] == [warned]
    assert "Grantwire is up." in output.getvalue()
