"""What is shipped is complete: each built function runs with its build folder and the built layer, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paths import FUNCTIONS
from tests.support.plaintext import PLAINTEXT
from tests.support.sam_template import load_template

if TYPE_CHECKING:
    from infra.local.stack import Stack

LOGICAL_NAMES = {
    properties["CodeUri"].rstrip("/").removeprefix("functions/"): name
    for name, resource in load_template()["Resources"].items()
    if resource["Type"] == "AWS::Serverless::Function"
    for properties in [resource["Properties"]]
}

# Enough for any function's init phase, which opens no connection.
ENVIRONMENT = {
    **PLAINTEXT,
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "NATS_URL": "nats://127.0.0.1:1",
    "ENTITLEMENT_NATS_SUBJECT": "events",
    "ENTITLEMENT_NATS_STREAM": "EVENTS",
    "NOTIFICATION_NATS_STREAM": "EVENTS",
    "NOTIFICATION_NATS_DURABLE": "bridge",
    "TOKEN_ENVIRONMENT": "live",
}

# Bits of a .pyc file: it has a hash instead of a date, and is believed without a look at the source (PEP 552).
UNCHECKED_HASH = b"\x01\x00\x00\x00"

PROGRAM = """
import sys, json
sys.path[:0] = json.loads(sys.argv[1])
import handler, grantwire
print(json.dumps([handler.__file__, list(grantwire.__path__)]))
"""


@pytest.mark.parametrize("name", LOGICAL_NAMES)
def test_a_built_function_imports_alone(stack: Stack, name: str) -> None:
    """No site-packages, no checkout: a dependency that the layer forgot is found here, not on AWS."""
    build = stack.deployment.build
    path = [str(build / LOGICAL_NAMES[name]), str(build / "CoreLayer" / "python")]
    assert run_alone(name, path) == [f"{path[0]}/handler.py", [f"{path[1]}/grantwire"]]


def run_alone(name: str, path: list[str]) -> Any:
    """Where a function finds its handler and our package, when it looks into these folders and no others."""
    # -I and -S: neither the environment nor the interpreter's own site-packages add anything to the path.
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(path)],
        env={"AWS_LAMBDA_FUNCTION_NAME": name, **ENVIRONMENT},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_the_migrations_are_shipped(stack: Stack) -> None:
    """The link in the function's folder becomes files in the build."""
    shipped = stack.deployment.build / LOGICAL_NAMES["migrate_database"] / "migrations"
    assert not shipped.is_symlink()
    assert {path.name for path in shipped.glob("*.sql")} == {
        path.name for path in (FUNCTIONS / "migrate_database" / "migrations").glob("*.sql")
    }


def test_the_layer_brings_no_sdk(stack: Stack) -> None:
    """boto3 comes with the runtime; shipping it would cost size and cold start."""
    shipped = {path.name for path in (stack.deployment.build / "CoreLayer" / "python").iterdir()}
    assert not shipped & {"boto3", "botocore"}
    assert {"grantwire", "psycopg", "psycopg_binary", "aws_lambda_powertools", "nats", "google"} <= shipped


def test_the_layer_ships_byte_code_that_no_date_can_spoil(stack: Stack) -> None:
    """A cold start compiles nothing: neither /opt nor a new date of a file makes Python do it again."""
    layer = stack.deployment.build / "CoreLayer" / "python"
    sources = [
        path for package in ("grantwire", "nats", "aws_lambda_powertools") for path in (layer / package).rglob("*.py")
    ]
    assert sources
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        with compiled.open("rb") as file:
            magic, flags = file.read(4), file.read(4)
        assert (magic, flags) == (importlib.util.MAGIC_NUMBER, UNCHECKED_HASH), source


def test_the_layer_is_small(stack: Stack) -> None:
    """What was compiled to machine code is not shipped as source too."""
    layer = stack.deployment.build / "CoreLayer"
    files = [path for path in layer.rglob("*") if path.is_file()]
    assert not [path.name for path in files if path.suffix in {".c", ".pyx", ".pyi"}]
    assert sum(path.stat().st_size for path in files) < 40_000_000
