"""X1, W4: what counts as late follows the mode of the workers."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta

from grantwire.operations.problems import ProblemSettings, find_problems, is_late, late_after
from grantwire.settings import load
from grantwire.workers.schedule import ScheduleSettings
from tests.support.ops_examples import status

STAGES = {
    "transactions": "TRANSACTION_OPEN",
    "times": "TIMES_OVERDUE",
    "outbox": "EVENTS_OLD",
    "stream": "EVENTS_UNCONFIRMED",
    "notifications": "NOTIFICATIONS_OVERDUE",
}


def _late_stages(mode: str, interval: str, age_seconds: float) -> set[str]:
    """Return the stages whose oldest change is a problem at this age, with the default limit of 60 s."""
    settings = load(ProblemSettings, {"WORKER_MODE": mode, "WORKER_INTERVAL": interval})
    found = set()
    for stage, code in STAGES.items():
        example = copy.deepcopy(status())
        since = datetime.fromisoformat(example["at"]) - timedelta(seconds=age_seconds)
        example["settled"]["oldest"] = dict.fromkeys(STAGES) | {stage: since.isoformat()}
        if code in {problem["code"] for problem in find_problems(example, settings)}:
            found.add(stage)
    return found


def test_change_that_waits_for_the_next_start_of_a_worker_is_no_problem() -> None:
    """The limit is counted from that start on, only at the stages whose worker ends when it is idle."""
    assert _late_stages("always-on", "1m", 90) == STAGES.keys() - {"times"}
    assert _late_stages("economical", "1m", 90) == {"transactions"}
    for mode in ("always-on", "economical"):
        assert _late_stages(mode, "1m", 121) == set(STAGES)
        assert _late_stages(mode, "0s", 61) == set(STAGES)
    assert _late_stages("economical", "5m", 359) == {"transactions"}
    assert _late_stages("economical", "5m", 361) == set(STAGES)


def test_worker_is_late_after_three_missed_starts() -> None:
    """The hourly sweep after two; a worker that runs all the time starts every minute in any case."""
    slow = load(ScheduleSettings, {"WORKER_MODE": "always-on", "WORKER_INTERVAL": "5m"})
    assert late_after(slow)["relay_outbox"] == 240
    assert late_after(slow)["record_advisories"] == 1200
    assert late_after(slow)["sweep_retention"] == 9000
    assert is_late("relay_outbox", 241, slow)
    assert not is_late("record_advisories", 241, slow)
