"""Secrets of the deployed stack do not leak, and a function reads its secret from Secrets Manager, as on AWS.

This file runs late in the suite, so that the logs of most other tests are checked too.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from psycopg import sql

from infra.local.commands.logs import FunctionLogs
from infra.local.deployment.sam import STACK_NAME
from infra.local.system.processes import HAS_PROC, PROC, wait_until
from tests.e2e.aws import client, invoke
from tests.e2e.http import Http
from tests.support.client import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack


@pytest.fixture
def secrets(stack: EmbeddedStack) -> dict[str, str]:
    """The secrets of the stack, by name."""
    parameters = stack.deployment.parameters
    urls = {name: value for name, value in parameters.items() if "://" in value and urlsplit(value).password}
    passwords = {name: unquote(urlsplit(url).password or "") for name, url in urls.items()}
    description = json.loads(stack.description.read_text())
    assert passwords.keys() >= {
        *("DatabaseUrl", "ClientsDatabaseUrl", "MigrationDatabaseUrl"),
        *("NatsUrl", "TopologyNatsUrl"),
    }
    assert description["token"] == stack.token
    # The first parts of a token identify the client; only the last part is secret.
    passwords |= {f"NATS {user}": password for user, password in stack.nats.users.passwords.items()}
    return {**passwords, "superuser": stack.postgres.password, "token": stack.token.rpartition("_")[2]}


def test_no_secret_is_in_a_log(stack: EmbeddedStack, http: Http, secrets: dict[str, str]) -> None:
    """This checks the logs of the servers, SAM, the emulator and every function, also after failures."""
    user = f"u_{uuid.uuid4()}"
    assert http.grant(f"{user}-1", user_id=user).status == 200
    assert Http(http.url, stack.token[:-1]).send("GET", f"/v1/users/{user}/entitlements").status in {401, 403}
    assert "applied" in invoke(stack, "migrate-database")
    assert invoke(stack, "configure-streams") == {"created": [], "updated": []}
    for function in ("relay-outbox", "run-operator-commands", "manage-clients"):
        invoke(stack, function, {"until": "idle", "budget": "1s", "action": "none"})
    lines = FunctionLogs(stack).new_lines()
    assert any("migrate-database" in line for line in lines)
    files = {str(path): _read(path) for path in _logs(stack.state)}
    assert {Path(path).name for path in files} >= {"postgres.log", "nats.log", "emulator.log", "deployment.log"}
    assert _find_leaks(secrets, {**files, "functions": "\n".join(lines)}) == []


def test_no_secret_is_an_output_of_the_stack(stack: EmbeddedStack, secrets: dict[str, str]) -> None:
    """Everyone with read access to a deployment sees its outputs."""
    (description,) = client(stack, "cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    assert description["Outputs"]
    assert _find_leaks(secrets, {"outputs": json.dumps(description["Outputs"])}) == []


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows command lines as files")
def test_no_secret_is_in_a_command_line(stack: EmbeddedStack, secrets: dict[str, str]) -> None:
    """Every account can read the command lines of all processes: servers, emulator, functions."""
    lines = {str(path): _read(path).replace("\0", " ") for path in PROC.glob("[0-9]*/cmdline")}
    assert stack.postgres.pid is not None
    assert "postgres" in lines[str(PROC / str(stack.postgres.pid) / "cmdline")]
    assert _find_leaks(secrets, lines) == []


def test_files_with_secrets_are_readable_by_their_owner_only(stack: EmbeddedStack, secrets: dict[str, str]) -> None:
    """The parameters of the deployment are not stored at all."""
    passwords = list(stack.postgres.state.glob("password*"))
    assert len(passwords) == 4  # superuser, owner, functions, administration of clients
    assert len({path.read_text() for path in passwords}) == 4
    private = [stack.description, stack.state / "token", *passwords, stack.emulator.state]
    private += [stack.nats.state / name for name in ("nats.conf", "users.json")]
    assert [path.name for path in private if path.stat().st_mode & 0o077] == []
    stored = [path for path in (stack.state / "deployment").glob("*") if path.is_file()]
    assert _find_leaks(secrets, {str(path): _read(path) for path in stored}) == []


def test_function_reads_its_secret_and_follows_a_rotation(stack: EmbeddedStack, http: Http) -> None:
    """As on AWS, the environment contains no address, and a new password needs no deployment."""
    path = SUMMARY.replace("{user_id}", "u_rotation")
    with psycopg.connect(stack.postgres.url("grantwire"), autocommit=True) as admin:
        name = f"rotating_{uuid.uuid4().hex[:8]}"
        role = {"role": sql.Identifier(name), "functions": sql.Identifier("grantwire_functions")}
        admin.execute(sql.SQL("CREATE ROLE {role} LOGIN PASSWORD 'first' IN ROLE {functions}").format(**role))
        admin.execute(sql.SQL("GRANT CONNECT ON DATABASE grantwire TO {role}").format(**role))
        manager = client(stack, "secretsmanager")
        arn = manager.create_secret(Name=name, SecretString=_secret(stack, name, "first"))["ARN"]
        try:
            with _variables(stack, "show-summary", DATABASE_URL="", DATABASE_SECRET_ARN=arn):
                assert _eventually_uses(admin, http, path, name)
                admin.execute(sql.SQL("ALTER ROLE {role} PASSWORD 'second'").format(**role))
                manager.put_secret_value(SecretId=arn, SecretString=_secret(stack, name, "second"))
                admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
                assert http.send("GET", path).status == 200
        finally:
            admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
            admin.execute(sql.SQL("REVOKE CONNECT ON DATABASE grantwire FROM {role}").format(**role))
            admin.execute(sql.SQL("DROP ROLE {role}").format(**role))


def _secret(stack: EmbeddedStack, name: str, password: str) -> str:
    url = urlsplit(stack.database_url)
    secret = {"username": name, "password": password, "host": url.hostname, "port": url.port, "dbname": "grantwire"}
    return json.dumps(secret)


@contextmanager
def _variables(stack: EmbeddedStack, function: str, **changed: str) -> Iterator[None]:
    """Change variables of a deployed function inside the block."""
    functions, name = client(stack, "lambda"), f"{STACK_NAME}-{function}"
    before = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    functions.update_function_configuration(FunctionName=name, Environment={"Variables": before | changed})
    try:
        yield
    finally:
        functions.update_function_configuration(FunctionName=name, Environment={"Variables": before})


def _eventually_uses(admin: psycopg.Connection[Any], http: Http, path: str, role: str) -> bool:
    """Return whether the function connects as this role; an older execution environment may respond at first."""

    def uses() -> bool:
        assert http.send("GET", path).status == 200
        return bool(admin.execute("SELECT FROM pg_stat_activity WHERE usename = %s", [role]).fetchall())

    return wait_until(uses, 30)


def _find_leaks(secrets: dict[str, str], texts: dict[str, str]) -> list[tuple[str, str]]:
    """Return the name of each secret in a text, with the name of the text."""
    return [(name, place) for name, secret in secrets.items() for place, text in texts.items() if secret in text]


def _logs(state: Path) -> list[Path]:
    """Return all log files. The emulator deletes folders of ended functions meanwhile, which os.walk tolerates."""
    files = [Path(folder, name) for folder, _, names in os.walk(state) for name in names]
    return [path for path in files if ".log" in path.name]


def _read(path: Path) -> str:
    """Return the text of a file, or an empty string if the file or its process no longer exists."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
