"""The build is complete: each function runs with only its build folder and the built layer."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.deployment.template import load_template, logical_names
from tests.support.nats_accounts import Operator
from tests.support.paths import LIBRARY, ROOT, SQL
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack

LOGICAL_NAMES = logical_names()

# Enough for the init phase of every function, which opens no connection.
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

# The flags of a .pyc file that is used without comparing it with its source (PEP 552).
UNCHECKED_HASH = b"\x01\x00\x00\x00"

PROGRAM = """
import sys, json
sys.path[:0] = json.loads(sys.argv[1])
import handler, grantwire
print(json.dumps([handler.__file__, list(grantwire.__path__)]))
"""


LIBRARY_PROGRAM = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from grantwire_idempotency import MemoryStore, idempotent
runs = []
job = idempotent(MemoryStore(), key=str, name="job")(lambda order: runs.append(order) or "done")
print(job("o-1"), job("o-1"), len(runs))
"""


# What a credentials file of NATS needs, and a program that signs for one. Its arguments are the file and the layers.
CREDENTIALS = {"nacl", "cffi", "pycparser"}
CREDENTIALS_PROGRAM = """
import sys
sys.path[:0] = sys.argv[2:]
from grantwire.errors import ConfigError
from grantwire.jetstream.connection import _signing_options
try:
    print(len(_signing_options(sys.argv[1])["signature_cb"]("nonce")))
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("name", LOGICAL_NAMES)
def test_built_function_imports_without_other_packages(stack: EmbeddedStack, name: str) -> None:
    """Without site-packages and the checkout, a dependency that is missing in the layer is found here, not on AWS."""
    build = stack.deployment.build
    path = [str(build / LOGICAL_NAMES[name]), str(build / "CoreLayer" / "python")]
    assert import_isolated(name, path) == [f"{path[0]}/handler.py", [f"{path[1]}/grantwire"]]


def import_isolated(name: str, path: list[str]) -> Any:
    """Import a function with only these folders on the path; return the paths of its handler and of grantwire."""
    # -I and -S: neither the environment nor the interpreter's site-packages add anything to the path.
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(path)],
        env={"AWS_LAMBDA_FUNCTION_NAME": name, **ENVIRONMENT},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])  # before it, a function logs that no database responds


def test_built_template_has_no_anchors_aliases_or_merge_keys(stack: EmbeddedStack) -> None:
    """template.yaml uses them, but CloudFormation does not accept them."""
    text = (stack.deployment.build / "template.yaml").read_text()
    tokens = list(yaml.scan(text))
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]
    assert "<<" not in [token.value for token in tokens if isinstance(token, yaml.ScalarToken)]
    assert yaml.safe_load(text)["Resources"].keys() == load_template()["Resources"].keys()


def test_build_contains_the_migrations(stack: EmbeddedStack) -> None:
    """The link in the layer becomes files in the build. The layer also has those of the library."""
    layer = stack.deployment.build / "CoreLayer" / "python"
    for shipped, source in (
        (layer / "grantwire" / "database" / "sql", SQL),
        (
            layer / "grantwire_idempotency" / "sql",
            ROOT / "layers" / "idempotency" / "src" / "grantwire_idempotency" / "sql",
        ),
    ):
        assert not shipped.is_symlink()
        assert _contents(shipped) == _contents(source)
        assert any(path.suffix == ".sql" for path in _contents(shipped))


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_layer_contains_no_aws_sdk(stack: EmbeddedStack) -> None:
    """The runtime provides boto3; in the layer it would cost size and cold start time."""
    shipped = {path.name for path in (stack.deployment.build / "CoreLayer" / "python").iterdir()}
    assert not shipped & {"boto3", "botocore"}
    assert {
        "grantwire",
        "grantwire_idempotency",
        "psycopg",
        "psycopg_binary",
        "aws_lambda_powertools",
        "nats",
        "google",
    } <= shipped


def test_layer_contains_the_complete_library_without_its_optional_packages(stack: EmbeddedStack) -> None:
    """All files but the stub are there, including SQL. The service does not use redis, rbloom and cachetools."""
    layer = stack.deployment.build / "CoreLayer" / "python"
    shipped, source = layer / "grantwire_idempotency", LIBRARY / "grantwire_idempotency"
    missing = {path.relative_to(source) for path in source.rglob("*.*") if path.suffix not in {".pyc", ".pyi"}} - {
        path.relative_to(shipped) for path in shipped.rglob("*.*")
    }
    assert missing == set()
    assert not {path.name for path in layer.iterdir()} & {"redis", "rbloom", "cachetools"}


def test_layer_of_the_library_works_alone(stack: EmbeddedStack) -> None:
    """C14: it has the files of the library and nothing else, and its ARN is an output of the stack."""
    layer = stack.deployment.build / "IdempotencyLayer" / "python"
    files = {path.relative_to(LIBRARY): path.read_bytes() for path in LIBRARY.rglob("*.*") if path.suffix != ".pyc"}
    assert {path: content for path, content in _contents(layer).items() if path.suffix} == files
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LIBRARY_PROGRAM, str(layer)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("done done 1\n", "")
    assert re.fullmatch(r"arn:aws:lambda:[^:]+:\d+:layer:[^:]+:\d+", stack.deployment.outputs()["IdempotencyLayerArn"])


def test_layer_contains_byte_code_that_does_not_depend_on_file_dates(stack: EmbeddedStack) -> None:
    """A cold start compiles nothing, neither because files are in /opt nor because their dates changed."""
    layer = stack.deployment.build / "CoreLayer" / "python"
    packages = ("grantwire", "grantwire_idempotency", "nats", "aws_lambda_powertools")
    sources = [path for package in packages for path in (layer / package).rglob("*.py")]
    assert sources
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        with compiled.open("rb") as file:
            magic, flags = file.read(4), file.read(4)
        assert (magic, flags) == (importlib.util.MAGIC_NUMBER, UNCHECKED_HASH), source


def test_layer_is_small_and_without_compiled_sources(stack: EmbeddedStack) -> None:
    """X5: the layer has no C sources, no type stubs, and not what signs for a credentials file of NATS."""
    layer = stack.deployment.build / "CoreLayer"
    files = [path for path in layer.rglob("*") if path.is_file()]
    assert not [path.name for path in files if path.suffix in {".c", ".pyx", ".pyi"}]
    assert sum(path.stat().st_size for path in files) < 30_000_000
    shipped = {path.name for path in (layer / "python").iterdir()}
    assert not shipped & CREDENTIALS


def test_layer_for_a_credentials_file_signs(stack: EmbeddedStack) -> None:
    """X5: it is built for `NatsCredentialsFile=true`, and works with the other one."""
    build = stack.deployment.build
    core, credentials = (str(build / name / "python") for name in ("CoreLayer", "CredentialsLayer"))
    assert {path.name for path in (build / "CredentialsLayer" / "python").iterdir()} >= CREDENTIALS
    for path, result in (([core], "NatsCredentialsFile=true"), ([core, credentials], "88\n")):
        program = [sys.executable, "-I", "-S", "-B", "-c", CREDENTIALS_PROGRAM, Operator().credentials(), *path]
        process = subprocess.run(program, cwd="/", capture_output=True, text=True, check=False)
        assert result in process.stdout, process.stderr
