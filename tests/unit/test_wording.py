"""T1, T3: a number of one has its noun in the singular, in each message for operators."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from grantwire.operations import wording
from grantwire.operations.problems import WORKERS, ProblemSettings, find_problems
from grantwire.settings import load
from grantwire_cli import wording as command_wording
from tests.support.ops_examples import status

WORKER = status()["workers"][0] | {"seconds_since": 1.2}
SETTINGS = load(ProblemSettings, {"STATUS_SETTLED_AGE_SECONDS": "1", "STATUS_CONSUMER_LAG": "0"})


def with_ones() -> dict[str, Any]:
    """Return a status in which one of each thing needs a person."""
    found = copy.deepcopy(status())
    found["workers"] = [WORKER | {"worker": name} for name in WORKERS]
    found["workers"][0]["late"] = True
    found["settled"]["oldest"]["outbox"] = "2026-01-08T07:09:58.600000Z"
    found["stream"]["consumer_lag"] = 1
    for leases in found["leases"].values():
        leases["expired"] = 0
    found["leases"]["outbox"] = {"held": 0, "expired": 1, "expired_since": None}
    found["dead_letters"] = {"open": 1, "capped": False, "groups": []}
    found["read_model"] = {"ahead": 1, "behind": 0, "wrong": 0, "measured_at": None}
    found["partitions"] = {"months_ahead": 1, "rows_in_default": 1}
    found["commands"] = {"failed_last_day": 1, "last_failure": None}
    return found


def test_problem_with_one_thing_names_it_in_the_singular() -> None:
    """T1: the status, and so the command and the console."""
    problems = find_problems(with_ones(), SETTINGS)
    assert [problem["message"] for problem in problems] == [
        "relay_outbox last ran 1 second ago",
        "the oldest change whose event is not published was made 1 second ago",
        "the bridge has not acknowledged 1 message",
        "1 lease of outbox expired: a worker stopped without releasing it",
        "1 dead letter is open",
        "1 row of the read model is wrong; rebuild it",
        "the audit has partitions for 1 month ahead, and 1 row without one",
        "1 command of an operator failed in the last day",
    ]


@pytest.mark.parametrize("count_of", [wording.count_of, command_wording.count_of])
def test_number_with_its_noun(count_of: Any) -> None:
    """T3: the service and the command say it in the same way."""
    assert [count_of(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert count_of(1, "row", capped=True) == "1 or more rows"
    assert [count_of(number, "row is", "rows are") for number in (1, 2)] == ["1 row is", "2 rows are"]
