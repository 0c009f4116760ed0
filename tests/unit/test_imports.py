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

# Each costs 20 to 460 ms of a cold start. A package stands for all of its modules, except where a part is named.
HEAVY = {
    "aws_lambda_powertools",
    "aws_lambda_powertools.event_handler",
    "aws_lambda_powertools.utilities.parameters",
    "aws_xray_sdk",
    "boto3",
    "botocore.session",
    "cachetools",
    "google.protobuf",
    "nacl",
    "nats",
    "psycopg",
    "pydantic",
    "rbloom",
    "redis",
    "requests",
    "urllib3",
}

# What each function may load, and does: one that no longer needs a module gives it up here.
DATABASE = {"aws_lambda_powertools", "psycopg"}
STREAM = DATABASE | {"nats"}
EVENTS = STREAM | {"google.protobuf"}
ALLOWED = {
    "authorize_caller": DATABASE,
    "bridge_events": EVENTS,
    "deliver_notifications": DATABASE,
    "grant": DATABASE,
    "manage_clients": DATABASE,
    "migrate_database": DATABASE,
    "query": DATABASE,
    "rebuild_read_model": EVENTS,
    "record_advisories": STREAM,
    "redrive_dead_letters": STREAM,
    "relay_outbox": EVENTS,
    "revoke": DATABASE,
    "show_inbox": DATABASE,
    "show_summary": DATABASE,
    "sweep_retention": DATABASE,
}


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


def test_every_function_has_its_list() -> None:
    """A new function decides what it may load."""
    assert ALLOWED.keys() == {folder.name for folder in FUNCTIONS.iterdir() if folder.is_dir()}


@pytest.mark.parametrize("function", sorted(ALLOWED))
def test_a_function_loads_the_heavy_modules_of_its_list_and_no_others(function: str) -> None:
    """Importing needs no environment, no network, no AWS."""
    assert modules_after_importing(f"functions.{function}.handler", [ROOT, LAYER, LIBRARY]) & HEAVY == ALLOWED[function]


PACKAGES = {
    # A package that talks to a server loads its client; no other one does, whatever its modules need.
    "grantwire": set(),
    "grantwire.clients": set(),
    "grantwire.dead_letters": set(),
    "grantwire.entrypoints": set(),
    "grantwire.idempotency": set(),
    "grantwire.jetstream": set(),
    "grantwire.outbox": set(),
    "grantwire.read_model": set(),
    "grantwire.runtime": set(),
    "grantwire.workers": set(),
    "grantwire.observability": {"aws_lambda_powertools"},
}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_itself_is_light(package: str) -> None:
    """Its `__init__` is its contract: naming one of its modules must not load what the others need."""
    assert modules_after_importing(package, [LAYER, LIBRARY]) & HEAVY == PACKAGES[package]


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
