"""G9: what `make up` prints."""

from __future__ import annotations

import io
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.notifications.senders.endpoint import parse_keys
from infra.local.commands import up
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.stack import selection, webhook

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fake_stack(state: Path, start: Callable[[], None]) -> SimpleNamespace:
    """Return a stack that starts nothing, with a password in each address of a server."""
    addresses = ("database_url", "nats_url", "nats_reader_url")
    return SimpleNamespace(
        state=state,
        up=start,
        description=state / "stack.json",
        api_url="http://127.0.0.1:4566/v1",
        emulator_url="http://127.0.0.1:4566",
        **{name: f"nats://user:secret-of-{name}@127.0.0.1:4222/grantwire" for name in addresses},
    )


@pytest.mark.parametrize(("uid", "warned"), [(0, True), (1000, False)])
def test_root_is_warned_before_anything_starts(
    uid: int, warned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G9: the functions would run as root; the warning comes while the command can still be interrupted."""
    output = io.StringIO()
    printed_at_start: list[str] = []
    stack = fake_stack(tmp_path, lambda: printed_at_start.append(output.getvalue()))

    def select_stack(*_: Any) -> Any:
        return stack

    monkeypatch.setattr(selection, "select_stack", select_stack)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert up.up([], Progress(output)) == 0
    assert ["you are root" in text for text in printed_at_start] == [warned]
    assert "Grantwire is up." in output.getvalue()


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """G14: a terminal and the log of a CI keep what is printed. The output says where the passwords are."""
    output = io.StringIO()
    monkeypatch.setattr(selection, "select_stack", lambda *_: fake_stack(tmp_path, lambda: None))
    assert up.up([], Progress(output)) == 0
    assert "secret-of" not in output.getvalue()
    assert output.getvalue().count("nats://user@127.0.0.1:4222/grantwire") == 3
    assert f"passwords   in {up.relative_to_folder(tmp_path / 'stack.json')}, which" in output.getvalue()


def test_receiver_is_kept_until_it_is_switched_off(tmp_path: Path) -> None:
    """D3: `make up WEBHOOK=…` gives the stack a receiver and a private key, and says where the key is."""
    assert webhook.parameters(tmp_path) == {}
    webhook.choose(tmp_path, "http://127.0.0.1:4242/hook")
    chosen = webhook.parameters(tmp_path)
    assert (chosen["NotificationSender"], chosen["WebhookUrl"]) == ("webhook", "http://127.0.0.1:4242/hook")
    assert parse_keys(chosen["WebhookKeys"]) == (chosen["WebhookKeys"],)
    assert f"signed with the key in {tmp_path / 'webhook-key'}" in webhook.describe(tmp_path)
    assert stat.S_IMODE((tmp_path / "webhook-key").stat().st_mode) == 0o600
    webhook.choose(tmp_path, "http://127.0.0.1:4243/hook")
    assert webhook.parameters(tmp_path)["WebhookKeys"] == chosen["WebhookKeys"]
    for wrong in ("127.0.0.1:4242", "ftp://127.0.0.1/hook", "http://"):
        with pytest.raises(CommandError, match="WEBHOOK must be off, or an address"):
            webhook.choose(tmp_path, wrong)
    webhook.choose(tmp_path, "off")
    assert webhook.parameters(tmp_path) == {}
