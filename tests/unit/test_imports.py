"""Each function imports only the heavy modules that it needs, because imports make a cold start slow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paths import FUNCTIONS, LAYER, LIBRARY, ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Each adds 20 to 460 ms to a cold start, except standardwebhooks, which only the webhook sender needs. A package
# includes its modules, unless a module is listed separately.
HEAVY_MODULES = {
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
    "standardwebhooks",
    "redis",
    "requests",
    "urllib3",
}

# The heavy modules that each function loads; the comparison is exact, so remove a module that is no longer needed.
DATABASE = {"aws_lambda_powertools", "psycopg"}
STREAM = DATABASE | {"nats"}
EVENTS = STREAM | {"google.protobuf"}
ALLOWED = {
    "authorize_caller": DATABASE,
    "bridge_events": EVENTS,
    "check_entitlement": DATABASE,
    "change_batch": DATABASE,
    "console": {"aws_lambda_powertools"},
    "configure_streams": {"aws_lambda_powertools", "nats"},
    "deliver_notifications": DATABASE,
    "expire_entitlements": DATABASE,
    "extend": DATABASE,
    "grant": DATABASE,
    "list_changes": DATABASE,
    "manage_clients": DATABASE,
    "migrate_database": DATABASE,
    "operate_clients": DATABASE,
    "operations": DATABASE | {"google.protobuf"},
    "query": DATABASE,
    "record_advisories": EVENTS,
    "relay_outbox": EVENTS,
    "revoke": DATABASE,
    "run_operator_commands": EVENTS,
    "show_inbox": DATABASE,
    "show_summary": DATABASE,
    "sweep_retention": DATABASE,
}


# Imports the modules that it is given, one after the other, and prints those that each has added.
IMPORT_EACH = """
import importlib, json, sys
loaded = {}
for name in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded[name] = sorted(set(sys.modules) - before)
print(json.dumps(loaded))
"""


def modules_after_importing(name: str, path: list[Path]) -> set[str]:
    """Return the modules that a new interpreter without environment variables has loaded after one import."""
    return set(run_alone(f"import sys, json; import {name}; print(json.dumps(sorted(sys.modules)))", path))


def run_alone(program: str, path: list[Path], *arguments: str) -> Any:
    """Run a program in a new interpreter without environment variables, and return the JSON that it prints."""
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


@cache
def modules_of_function(function: str) -> set[str]:
    """Return the modules that a cold start of a function loads."""
    return modules_after_importing(f"functions.{function}.handler", [ROOT, LAYER, LIBRARY])


def test_every_function_is_listed() -> None:
    """A new function must declare the heavy modules that it loads."""
    assert ALLOWED.keys() == {folder.name for folder in FUNCTIONS.iterdir() if folder.is_dir()}


@pytest.mark.parametrize("function", sorted(ALLOWED))
def test_function_loads_exactly_its_heavy_modules(function: str) -> None:
    """Importing a handler needs no environment, network or AWS."""
    assert modules_of_function(function) & HEAVY_MODULES == ALLOWED[function]


WIRING_MODULE = re.compile(r"grantwire\.wiring\.(routes|workers|tasks)\.(\w+)")
# The functions that share a runtime.
SHARE_ENTITLEMENTS = {"extend", "grant", "query", "revoke"}


@pytest.mark.parametrize("function", sorted(ALLOWED.keys() - {"console"}))
def test_wiring_of_a_function_has_its_name(function: str) -> None:
    """A reader finds the wiring of a function by its name, and a cold start loads that of no other function."""
    matches = filter(None, map(WIRING_MODULE.fullmatch, modules_of_function(function)))
    wiring = {match[2] for match in matches} - {"handler", "runtime"}
    own = "entitlements" if function in SHARE_ENTITLEMENTS else function
    assert own in wiring
    assert wiring <= {own, "entitlements"}  # change_batch has the settings of grant


ROUTES = [
    "change_batch",
    "check_entitlement",
    "extend",
    "grant",
    "list_changes",
    "query",
    "revoke",
    "show_inbox",
    "show_summary",
]


@pytest.mark.parametrize("function", ROUTES)
def test_route_loads_no_module_of_the_authorizer(function: str) -> None:
    """S4: a route needs them only if its gateway does not authenticate, which is not the case on AWS."""
    clients = {name for name in modules_of_function(function) if name.startswith("grantwire.clients.")}
    assert clients == {"grantwire.clients.limits", "grantwire.clients.scopes"}


PACKAGES = [
    "grantwire",
    "grantwire.api",
    "grantwire.clients",
    "grantwire.dead_letters",
    "grantwire.events",
    "grantwire.idempotency",
    "grantwire.jetstream",
    "grantwire.operations",
    "grantwire.outbox",
    "grantwire.read_model",
    "grantwire.wiring",
    "grantwire.workers",
    "grantwire.observability",  # the last one, because it loads a heavy module
]


def test_importing_a_package_loads_no_heavy_modules_of_its_parts() -> None:
    """Importing one module of a package must not load the dependencies of the others. Only observability needs one."""
    loaded = run_alone(IMPORT_EACH, [LAYER, LIBRARY], *PACKAGES)
    heavy = {package: HEAVY_MODULES.intersection(modules) for package, modules in loaded.items()}
    assert heavy == {package: set() for package in PACKAGES[:-1]} | {PACKAGES[-1]: {"aws_lambda_powertools"}}


def test_importing_errors_loads_no_other_module_of_the_service() -> None:
    """`import grantwire.errors` must not load psycopg through `grantwire/__init__.py`."""
    loaded = modules_after_importing("grantwire.errors", [LAYER, LIBRARY])
    assert {name for name in loaded if name.startswith("grantwire")} == {
        "grantwire",
        "grantwire.errors",
        "grantwire_idempotency",
        "grantwire_idempotency.errors",
    }
    assert "psycopg" not in loaded


# Builds the senders that it is given, one after the other, and prints the modules that each has added.
BUILD_SENDERS = """
import json, sys
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.settings import load
arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:w"
topic = "arn:aws:sns:us-east-1:123456789012:t"
names = {"NOTIFICATION_WEBHOOK_SECRET_ARN": arn, "NOTIFICATION_SNS_TOPIC_ARN": topic}
loaded = {}
before = set()
for kind in sys.argv[1:]:
    build_sender(load(SenderSettings, {"NOTIFICATION_SENDER": kind, **names}))
    loaded[kind] = sorted(set(sys.modules) - before)
    before = set(sys.modules)
print(json.dumps(loaded))
"""


def test_only_the_webhook_sender_loads_its_library() -> None:
    """G5: deliver_notifications imports it when its sender is built, and not for another sender."""
    for kind, library in {"sns": "boto3", "webhook": "standardwebhooks"}.items():
        loaded = run_alone(BUILD_SENDERS, [LAYER, LIBRARY], "log", kind)
        libraries = {name: {"standardwebhooks", "boto3"}.intersection(modules) for name, modules in loaded.items()}
        assert libraries == {"log": set(), kind: {library}}
