"""Log messages are stable identifiers: the runbook lists each of them, and nothing else."""

from __future__ import annotations

import pytest

from tests.support import log_messages

# Written by Powertools Metrics, not by the logger.
_REQUEST = "request completed"

CODE = log_messages.in_code()


def test_each_message_in_the_runbook_is_logged() -> None:
    """An operator who searches for a message of the runbook can find it."""
    listed = log_messages.in_runbook()
    assert len(listed) > 50
    assert sorted(listed.keys() - CODE.keys()) == [_REQUEST]


@pytest.mark.parametrize("text", sorted(CODE))
def test_each_logged_message_is_in_the_runbook(text: str) -> None:
    """Every message has its level, its fields, a meaning and an action in the runbook."""
    listed = log_messages.in_runbook().get(text)
    assert listed is not None, f"docs/runbook.md, Log messages: {text!r} is missing"
    assert listed.levels == CODE[text].levels
    assert CODE[text].fields <= listed.fields
