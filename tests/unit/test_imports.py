"""A cold start is paid by a caller: each function imports what it needs and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import FUNCTIONS, LAYER, LIBRARY, ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Each costs 50 to 460 ms: the AWS SDK, tracing, model and web frameworks, and what only workers may need.
HEAVY = {"boto3", "botocore.session", "aws_xray_sdk", "pydantic", "nats", "google.protobuf", "requests", "urllib3"}
API = ["grant", "revoke", "query", "show_summary", "show_inbox"]


def modules_after_importing(name: str, path: list[Path]) -> set[str]:
    """What a fresh interpreter with an empty environment has loaded after one import."""
    program = f"import sys, json; import {name}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("function", sorted(folder.name for folder in FUNCTIONS.iterdir() if folder.is_dir()))
def test_importing_a_handler_needs_nothing_and_does_nothing(function: str) -> None:
    """No environment, no network, no AWS."""
    assert "grantwire.settings" in modules_after_importing(f"functions.{function}.handler", [ROOT, LAYER, LIBRARY])


@pytest.mark.parametrize("function", API)
def test_a_function_on_a_caller_s_way_imports_nothing_heavy(function: str) -> None:
    """Each of the heavy ones would double the cold start."""
    loaded = modules_after_importing(f"functions.{function}.handler", [ROOT, LAYER, LIBRARY])
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("aws_lambda_powertools.event_handler")}


def test_the_package_itself_imports_nothing() -> None:
    """`import grantwire.errors` must not load psycopg by way of the package."""
    loaded = modules_after_importing("grantwire.errors", [LAYER, LIBRARY])
    assert {name for name in loaded if name.startswith("grantwire")} == {
        "grantwire",
        "grantwire.errors",
        "grantwire_idempotency",
        "grantwire_idempotency.errors",
    }
    assert "psycopg" not in loaded
