"""The application: all commands, and the options before a command's name."""

from typing import Annotated

import typer

from grantwire_cli import VERSION
from grantwire_cli.commands import (
    bulk,
    clients,
    config,
    cost,
    dead_letters,
    doctor,
    entitlements,
    events,
    local,
    ops_commands,
    read_model,
    status,
    trace,
    whoami,
)
from grantwire_cli.registry import (
    CONTEXT,
    ApiUrl,
    CheckoutPath,
    Json,
    NoColor,
    Profile,
    Region,
    StackName,
    Timeout,
    merge_options,
    reflow,
)
from grantwire_cli.session import Options

HELP = """Operate Grantwire: entitlements, dead letters, traces, clients, imports, and the local stack of a checkout.

A command talks to the running local stack of the current checkout, or to the installation that --profile, --stack-name,
or GRANTWIRE_API and GRANTWIRE_TOKEN select."""
EXIT_CODES = """[bold]Exit codes[/bold]
  0  done
  1  refused or failed; doctor: there are problems
  2  wrong usage
  3  the installation does not respond or is overloaded
  4  no valid token, a missing scope, or an unsafe file
  5  done, and the result is "no": not entitled, differences found, lines refused
  130  interrupted with Ctrl-C

[bold]Examples[/bold]
  grantwire up
  grantwire entitlements grant u_123 item1 --reason purchase --purchase-id p_456
  grantwire --profile prod status --watch"""


def build() -> typer.Typer:
    """Return the application."""
    app = typer.Typer(
        name="grantwire",
        help=reflow(HELP),
        epilog=EXIT_CODES,
        no_args_is_help=True,
        context_settings=CONTEXT,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_shared)
    local.add_to(app)
    status.add_to(app)
    doctor.add_to(app)
    cost.add_to(app)
    app.add_typer(entitlements.app, name="entitlements")
    trace.add_to(app)
    app.add_typer(dead_letters.app, name="dead-letters")
    app.add_typer(clients.app, name="clients")
    app.add_typer(read_model.app, name="read-model")
    app.add_typer(ops_commands.app, name="commands")
    app.add_typer(events.app, name="events")
    bulk.add_to(app)
    whoami.add_to(app)
    app.add_typer(config.app, name="config")
    return app


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"grantwire {VERSION}")
        raise typer.Exit


def _shared(  # noqa: PLR0913  # the options that every command has
    context: typer.Context,
    *,
    as_json: Json = False,
    no_color: NoColor = False,
    profile: Profile = None,
    api_url: ApiUrl = None,
    stack_name: StackName = None,
    region: Region = None,
    checkout: CheckoutPath = None,
    timeout: Timeout = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version  # handled by its callback
    context.obj = merge_options(
        Options(),
        {
            "as_json": as_json,
            "no_color": no_color,
            "profile": profile,
            "api_url": api_url,
            "stack_name": stack_name,
            "region": region,
            "checkout": checkout,
            "timeout": timeout,
        },
    )
