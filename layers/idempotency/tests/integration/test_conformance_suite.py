"""C16: the conformance suite, run by its documented command, notices the mistakes of stores of users."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "grantwire_idempotency.conformance")


def find_failures(harness: str, folder: Path) -> set[str]:
    """Run the suite on a store, without the settings of this checkout, and return the names of the failed tests."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join((PYTHONPATH, str(ROOT))),
        "IDEMPOTENCY_STORE": f"layers.idempotency.tests.support.broken_stores:{harness}",
    }
    (folder / "pytest.ini").write_text("[pytest]")
    report = subprocess.run(
        [sys.executable, *COMMAND, "-c", folder / "pytest.ini"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"\d+ (passed|failed)", report.stdout), report.stdout + report.stderr
    return set(re.findall(r"^FAILED \S+::(\w+)", report.stdout, re.MULTILINE))


@pytest.mark.parametrize("harness", ["correct", "correct_async"])
def test_suite_passes_for_a_correct_store(harness: str, tmp_path: Path) -> None:
    """C16, C22: so the failures below are those of the mistakes."""
    assert find_failures(harness, tmp_path) == set()


@pytest.mark.parametrize(
    ("harness", "failure"),
    [
        ("ignores_token", "test_repeated_check_gets_its_claim_again"),
        ("repeats_completion", "test_repeated_completion_and_release_change_nothing"),
        ("completes_after_pause", "test_expired_claim_cannot_be_completed"),
        ("extends_after_pause", "test_claim_can_be_extended_while_it_is_live"),
        ("constant_fence", "test_fencing_numbers_grow"),
        ("checks_then_claims", "test_exactly_one_of_many_concurrent_checks_gets_claim"),
        ("wall_clock", "test_clock_of_the_worker_does_not_matter"),
        ("wall_clock_of_datetime", "test_clock_of_the_worker_does_not_matter"),
        ("wall_clock_of_async", "test_clock_of_the_worker_does_not_matter"),
        ("deletes_early", "test_cleanup_does_not_change_check_results"),
        ("short_order", "test_result_is_kept_for_its_ttl_if_order_ttl_is_shorter"),
    ],
)
def test_suite_notices_a_mistake(harness: str, failure: str, tmp_path: Path) -> None:
    """C16, C20: lost responses, pauses, clock differences, fencing numbers, races."""
    assert failure in find_failures(harness, tmp_path)
