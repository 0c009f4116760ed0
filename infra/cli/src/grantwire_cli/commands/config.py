"""`grantwire config`: the profiles of the config file."""

import getpass
import sys
from dataclasses import replace
from typing import Annotated

import typer

from grantwire_cli.commands.parameters import Yes
from grantwire_cli.errors import AccessError
from grantwire_cli.profiles import Profile, check_name, config_path, load_config
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session

app = new_group("Manage profiles: named installations with their address and token.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.", show_default=False)]


@register(app, "list", "grantwire config list", "grantwire config list --json")
def list_(session: Session) -> None:
    """List the profiles, without their secrets."""
    config = load_config()
    profiles = [
        {"name": name, "current": name == config.current, **profile.public()}
        for name, profile in sorted(config.profiles.items())
    ]
    if session.output.as_json:
        session.output.json({"path": str(config.path), "profiles": profiles})
        return
    columns = ("name", "current", "api", "stack_name", "region", "token")
    session.output.table(columns, [[profile.get(column, "") for column in columns] for profile in profiles])
    session.note(f"File: {config.path}")


@register(
    app,
    "set",
    "grantwire config set prod --api https://abcdef1234.execute-api.eu-central-1.amazonaws.com/prod",
    "grantwire config set prod --stack-name grantwire --region eu-central-1",
    "vault read -field=token secret/grantwire | grantwire config set prod --token-stdin",
)
def set_(
    session: Session,
    name: Name,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from standard input.")] = False,
    no_token: Annotated[bool, typer.Option("--no-token", help="Store no token; use GRANTWIRE_TOKEN.")] = False,
) -> None:
    """Create or change a profile. The token is asked for, or read from standard input; it is never an argument.

    The address comes from --api, or from --stack-name and --region.
    """
    check_name(name)
    config = load_config()
    selection = session.options.selection
    profile = config.profiles.get(name, Profile())
    if selection.api:
        profile = replace(profile, api=selection.api, stack_name="")
    if selection.stack_name:
        profile = replace(profile, stack_name=selection.stack_name, api="")
    if selection.region:
        profile = replace(profile, region=selection.region)
    if not profile.api and not profile.stack_name:
        raise typer.BadParameter("Give the installation with --api or --stack-name.")
    profile = replace(profile, token="" if no_token else _read_token(token_stdin=token_stdin) or profile.token)
    config.profiles[name] = profile
    config.save()
    session.output.record({"profile": name, "path": str(config.path), **profile.public()})


@register(app, "use", "grantwire config use prod", "grantwire config use --none")
def use(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The profile's name.", show_default=False)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile, but the local stack.")] = False,
) -> None:
    """Choose the profile that commands use if nothing else selects an installation."""
    if none == bool(name):
        raise typer.BadParameter("Give the name of a profile, or --none.")
    config = load_config()
    if name:
        config.get(name)
    config.current = name or ""
    config.save()
    session.output.record({"current": config.current or None, "path": str(config.path)})


@register(app, "remove", "grantwire config remove old", "grantwire config remove old --yes")
def remove(session: Session, name: Name, yes: Yes = False) -> None:
    """Remove a profile with its token."""
    config = load_config()
    config.get(name)
    session.confirm(f"Remove the profile {name} with its token?", yes=yes)
    del config.profiles[name]
    config.current = "" if config.current == name else config.current
    config.save()
    session.output.record({"removed": name, "path": str(config.path)})


@register(app, "path", "grantwire config path")
def path(session: Session) -> None:
    """Print the path of the config file."""
    session.output.record({"path": str(config_path())})


def _read_token(*, token_stdin: bool) -> str:
    """Return the token; empty keeps the stored one."""
    if token_stdin:
        token = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        token = getpass.getpass("Token (not shown; empty keeps the stored one): ").strip()
    else:
        return ""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError("The token has characters that no token has.", code="BAD_TOKEN")
    return token
