"""What is wrong with the checkout's stack, or with the servers that the environment names, for `grantwire doctor`.

There are no options for addresses, because these contain passwords and every account can read command lines.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

import psycopg

from grantwire_cli.checks.findings import Finding, Level, problem
from infra.local.deployment.template import declared_parameters
from infra.local.doctor.deployment import check_local_deployment
from infra.local.doctor.durability import VARIABLE as MONITORING
from infra.local.doctor.machine import check_machine, check_servers
from infra.local.doctor.nats import check_nats
from infra.local.doctor.postgres import check_postgres
from infra.local.doctor.settings import check_settings
from infra.local.errors import CommandError
from infra.local.layer import PLAINTEXT, product_code
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS
from infra.local.stack import selection
from infra.local.stack.streams import topology_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

DATABASE = ("DATABASE_URL", "DATABASE_SECRET_ARN")
NATS = ("NATS_URL", "NATS_SECRET_ARN")


def findings(arguments: Sequence[str], progress: Progress) -> int:
    """Print what the checks found; return 1 if there are problems."""
    parser = argparse.ArgumentParser(prog="infra.local findings")
    parser.add_argument("--connections", type=int, default=0, help="connections that a deployment can open")
    parser.add_argument("--settings", help="check only this value of the parameter Settings")
    options = parser.parse_args(arguments)
    if options.settings is None:
        found = list(_findings(os.environ, progress, options.connections))
    else:
        found = list(_check_settings(options.settings))
    progress.print_line(json.dumps({"findings": [finding.as_dict() for finding in found]}))
    return 1 if any(finding.level is Level.PROBLEM for finding in found) else 0


def _findings(environ: Mapping[str, str], progress: Progress, connections: int = 0) -> Iterator[Finding]:
    if any(environ.get(name) for name in (*DATABASE, *NATS)):
        yield from _check_named_servers(environ, connections)
        return
    yield from check_machine()
    stack = selection.current_stack(progress)
    yield from check_servers(stack)
    alive = {server.name: server.is_alive() for server in stack.servers}
    if alive["postgres"]:
        yield from _check_database({**PLAINTEXT, "DATABASE_URL": stack.database_url}, migrate="make up")
    if alive["nats"]:
        yield from _check_streams(_nats_variables(stack), configure="make up", is_local=True)
    if stack.aws.is_alive():
        yield from check_local_deployment(stack)


def _check_settings(value: str) -> Iterator[Finding]:
    with product_code():
        yield from check_settings(value)


def _check_named_servers(environ: Mapping[str, str], connections: int) -> Iterator[Finding]:
    """Check the servers that the environment names, with the settings of the environment or of the template."""
    if not all(any(environ.get(name) for name in names) for names in (DATABASE, NATS)):
        text = "DATABASE_URL and NATS_URL, or the ARNs of their secrets, belong together."
        raise CommandError(text, hint="Set both, or unset both to check the running stack.")
    migrate = ".grantwire/venv/bin/python -m infra.operators.migrate"
    yield from _check_database(environ, migrate=migrate, connections=connections)
    configure = "sam remote invoke ConfigureStreamsFunction --stack-name NAME"
    yield from _check_streams({**topology_variables({}), **environ}, configure=configure)


def _check_database(environ: Mapping[str, str], *, migrate: str, connections: int = 0) -> Iterator[Finding]:
    try:
        with product_code():
            from grantwire.database import DatabaseSettings, connect  # noqa: PLC0415  # importable only here
            from grantwire.settings import load  # noqa: PLC0415

            with connect(load(DatabaseSettings, environ), application_name="grantwire-doctor") as connection:
                yield from check_postgres(connection, migrate=migrate, connections=connections)
    except (CommandError, psycopg.Error) as error:
        yield problem("PostgreSQL", f"PostgreSQL is not usable: {error}", "make up, or correct DATABASE_URL")


def _check_streams(environ: Mapping[str, str], *, configure: str, is_local: bool = False) -> Iterator[Finding]:
    try:
        with product_code():
            yield from check_nats(environ, configure=configure, is_local=is_local)
    except CommandError as error:
        yield problem("NATS", f"NATS is not usable: {error}", "make up, or correct NATS_URL")


def _nats_variables(stack: DeployedStack) -> dict[str, str]:
    parameters = {**declared_parameters(), **stack.deployment.parameters}
    addresses = {"NATS_URL": stack.nats_url, MONITORING: stack.nats_monitoring_url}
    inbox = {"NATS_INBOX_PREFIX": INBOX_PREFIXES[WORKERS]}
    return {**PLAINTEXT, **topology_variables(parameters), **inbox, **addresses}
