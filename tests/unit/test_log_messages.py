"""Log messages are stable identifiers: docs/log-messages.md lists each of them, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.support import log_messages

# Written by Powertools Metrics, not by the logger.
_REQUEST_COMPLETED = "request completed"

LOGGED = log_messages.collect_from_code()


def test_page_lists_only_messages_that_are_logged() -> None:
    """An operator who searches the logs for a message of the page can find it."""
    listed = log_messages.collect_from_page()
    assert len(listed) > 50
    assert sorted(listed.keys() - LOGGED.keys()) == [_REQUEST_COMPLETED]


@pytest.mark.parametrize("text", sorted(LOGGED))
def test_page_lists_each_logged_message(text: str) -> None:
    """Each message has its levels, its fields, a meaning and an action on the page."""
    listed = log_messages.collect_from_page().get(text)
    assert listed is not None, f"docs/log-messages.md: {text!r} is missing"
    assert listed.levels == LOGGED[text].levels
    assert LOGGED[text].fields <= listed.fields


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('logger.error("a", reason=r)', [("a", "ERROR")]),
        ('(logger.error if final else logger.warning)("a" if final else "b")', [("a", "ERROR"), ("b", "WARNING")]),
        ('(logger.error if final else logger.warning)("a")', [("a", "ERROR"), ("a", "WARNING")]),
        ('report = logger.error if final else logger.warning\nreport("a")', [("a", "ERROR"), ("a", "WARNING")]),
        ('logger.log(logging.WARNING if ok else logging.ERROR, "a")', [("a", "WARNING"), ("a", "ERROR")]),
        ('print("a")', []),
    ],
)
def test_each_form_of_log_call_is_found(source: str, found: list[tuple[str, str]]) -> None:
    """A message cannot escape the comparison because of how its call is written."""
    assert [(text, level) for text, level, _ in log_messages.find_log_calls(ast.parse(source))] == found
