"""`grantwire doctor`: find what is wrong with an installation, and how to repair it."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from grantwire_cli.checks.deployment import check_deployment
from grantwire_cli.checks.findings import Finding, Level, problem
from grantwire_cli.checks.installation import check_installation
from grantwire_cli.checks.preflight import Plan, check_before_deploy
from grantwire_cli.cloudformation import client, reported_errors
from grantwire_cli.errors import CommandError, ExitCode
from grantwire_cli.output import STYLES, visible
from grantwire_cli.registry import register
from grantwire_cli.session import Session
from grantwire_cli.wording import count_of

DEFAULT_STACK = "grantwire"
# With one of these, `--before-deploy` also checks the servers.
SERVERS = ("DATABASE_URL", "NATS_URL")
# What the first migration and configure_streams create.
MADE_LATER = {"schema", "privileges", "streams"}
MARKS = {Level.OK: "✓", Level.WARNING: "!", Level.PROBLEM: "✗"}


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    register(
        app,
        "doctor",
        "grantwire doctor",
        "grantwire doctor --stack-name grantwire --region eu-central-1",
        'grantwire doctor --before-deploy --region eu-central-1 --parameter-overrides "$PARAMETERS"',
        "grantwire --profile prod doctor --json | jq '.findings[] | select(.level == \"problem\")'",
    )(doctor)


def doctor(
    session: Session,
    before_deploy: Annotated[
        bool, typer.Option("--before-deploy", help="Check an AWS account before the first deployment (extra aws).")
    ] = False,
    parameter_overrides: Annotated[
        str, typer.Option("--parameter-overrides", help="With --before-deploy: the text that `sam deploy` gets.")
    ] = "",
) -> int:
    """Check an installation, and print what is wrong with the command that repairs it.

    For a checkout: Python, disk, ports, permissions, PostgreSQL, NATS, the emulator, clocks, functions and schedules.
    With --stack-name: the stack on AWS. For every installation: its API and its status. With DATABASE_URL and
    NATS_URL, a checkout checks these servers instead of its own. The exit code is 1 if there are problems.

    With --before-deploy: quotas, subnets, endpoints and secrets of an AWS account, and in a checkout the settings in
    the parameter Settings and, with DATABASE_URL and NATS_URL, whether these servers fit. It changes nothing.
    """
    findings = []
    found = _before_deploy(session, parameter_overrides) if before_deploy else _findings(session)
    for finding in found:
        findings.append(finding)
        if not session.output.as_json:
            _print(session, finding)
    counts = Counter(finding.level for finding in findings)
    if session.output.as_json:
        session.output.json(
            {"findings": [finding.as_dict() for finding in findings], "problems": counts[Level.PROBLEM]}
        )
    else:
        session.note(
            f"{count_of(counts[Level.PROBLEM], 'problem')}, {count_of(counts[Level.WARNING], 'warning')}, "
            f"{count_of(counts[Level.OK], 'check')} passed."
        )
    return ExitCode.FAILED if counts[Level.PROBLEM] else ExitCode.OK


def _findings(session: Session) -> Iterator[Finding]:
    selection = session.options.selection
    if selection.stack_name:
        yield from _check_stack(selection.stack_name, selection.region)
    try:
        target = session.target
    except CommandError as error:
        if error.code != "NO_INSTALLATION":
            yield problem("installation", str(error), error.hint)
            return
        yield from _check_checkout(session)
        return
    if target.checkout:
        yield from _check_checkout(session)
    yield from check_installation(session.api)


def _before_deploy(session: Session, overrides: str) -> Iterator[Finding]:
    selection = session.options.selection
    plan = Plan.parse(selection.stack_name or DEFAULT_STACK, overrides)
    try:
        with reported_errors():
            yield from check_before_deploy(lambda service: client(service, selection.region), plan)
    except CommandError as error:
        yield problem("account", str(error), error.hint or "aws sts get-caller-identity")
    if settings := plan.parameters.get("Settings"):
        yield from _check_checkout(session, "--settings", settings)
    if any(os.environ.get(name) for name in SERVERS):
        servers = _check_checkout(session, "--connections", str(plan.connections if plan.api_concurrency else 0))
        yield from (finding for finding in servers if finding.check not in MADE_LATER)


def _check_stack(name: str, region: str) -> Iterator[Finding]:
    try:
        with reported_errors():
            deploy = f"sam deploy --stack-name {name}"
            yield from check_deployment(lambda service: client(service, region), name, deploy=deploy)
    except CommandError as error:
        yield problem("deployment", str(error), error.hint or f"aws cloudformation describe-stacks --stack-name {name}")


def _check_checkout(session: Session, *options: str) -> Iterator[Finding]:
    """Run the checks of the checkout, which has the drivers of its servers."""
    try:
        records = session.checkout.query("findings", *options)["findings"]
    except CommandError as error:
        yield problem("checkout", str(error), error.hint or "grantwire up")
        return
    yield from map(Finding.from_dict, records)


def _print(session: Session, finding: Finding) -> None:
    style = STYLES[finding.level]
    line = Text.assemble((f"{MARKS[finding.level]} ", style), (f"{finding.check:14}", "bold"), visible(finding.message))
    session.output.show(line, soft_wrap=True)
    if finding.repair and finding.level is not Level.OK:
        repair = Text.assemble(f"{'':16}", ("→ ", style), visible(finding.repair))
        session.output.show(repair, soft_wrap=True)
