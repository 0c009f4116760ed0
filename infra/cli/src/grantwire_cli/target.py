"""The installation that a command talks to.

The first of these that is given decides:

1. an option: `--api`, `--stack-name`, `--profile`, `--checkout`
2. the variables GRANTWIRE_API, GRANTWIRE_PROFILE, GRANTWIRE_CHECKOUT
3. the current profile, chosen with `grantwire config use`
4. the running stack of the checkout that contains the current folder

A token is never an option, because every account can read command lines. GRANTWIRE_TOKEN, the profile or the stack's
description has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from grantwire_cli.checkout import Checkout, find_checkout, require_checkout
from grantwire_cli.errors import AccessError, CommandError
from grantwire_cli.profiles import Profile, load_config

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
ORIGINS = ("api", "stack_name", "profile", "checkout")


@dataclass(frozen=True)
class Selection:
    """The options that select an installation; empty ones are not given."""

    api: str = ""
    stack_name: str = ""
    region: str = ""
    profile: str = ""
    checkout: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Selection:
        """Return the selection that the environment makes."""
        checkout = environ.get("GRANTWIRE_CHECKOUT", "")
        return cls(
            api=environ.get("GRANTWIRE_API", ""),
            profile=environ.get("GRANTWIRE_PROFILE", ""),
            checkout=Path(checkout) if checkout else None,
        )

    def origins(self) -> list[str]:
        """Return the names of the given options."""
        return [name for name in ORIGINS if getattr(self, name)]


@dataclass(frozen=True)
class Target:
    """An installation: what to call it in messages, its address and its token."""

    title: str
    api_url: str
    token: str = field(repr=False)
    checkout: Checkout | None = None
    nats_url: str = field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the installation runs on this machine."""
        return urlsplit(self.api_url).hostname in LOOPBACK


def resolve_target(options: Selection, environ: Mapping[str, str]) -> Target:
    """Return the installation that options, environment, profiles or the current folder select.

    Raises BadParameter if two options contradict each other, CommandError if nothing is selected, and AccessError if
    there is no token or the address would send it in clear text.
    """
    given = options.origins()
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"{names} select different installations; give one of them.")
    selection = options if given else Selection.from_environment(environ)
    region = options.region
    token = environ.get("GRANTWIRE_TOKEN", "")
    if selection.api:
        nats_url = environ.get("GRANTWIRE_NATS_URL", "")
        checkout = Selection.from_environment(environ).checkout
        return _checked(_local_stack_at(selection.api, checkout, token, nats_url))
    if selection.stack_name:
        return _stack_target(selection.stack_name, region, token)
    if selection.profile:
        return _profile_target(selection.profile, load_config().get(selection.profile), token)
    if selection.checkout is None and (config := load_config()).current:
        return _profile_target(config.current, config.get(config.current), token)
    return _local_target(selection.checkout)


def _local_stack_at(api: str, path: Path | None, token: str, nats_url: str) -> Target:
    """Return the installation at an address; with its checkout, if it is a checkout's stack, as after `make env`."""
    try:
        checkout = find_checkout(path or Path.cwd())
    except AccessError:
        checkout = None
    description = (checkout.description() if checkout else None) or {}
    if checkout is None or str(description.get("api_url", "")).rstrip("/") != api.rstrip("/"):
        return Target(api, api, token, nats_url=nats_url)
    return Target("the local stack", api, token, checkout, nats_url or str(description.get("nats_reader_url", "")))


def _profile_target(name: str, profile: Profile, token: str) -> Target:
    """Return a profile's installation. Its own token comes first: GRANTWIRE_TOKEN may belong to another one."""
    token = profile.token or token
    if profile.stack_name:
        return _stack_target(profile.stack_name, profile.region, token)
    return _checked(Target(f"profile {name}", profile.api, token, nats_url=profile.nats_url))


def _stack_target(name: str, region: str, token: str) -> Target:
    from grantwire_cli.cloudformation import api_url  # noqa: PLC0415  # needs the extra `aws`

    return _checked(Target(f"stack {name}", api_url(name, region), token))


def _local_target(path: Path | None) -> Target:
    checkout = require_checkout(path) if path else find_checkout(Path.cwd())
    description = checkout.description() if checkout else None
    if checkout is None or description is None:
        where = f"The local stack of {checkout.folder} is not up." if checkout else "No installation is selected."
        start = "Start it with `grantwire up`" if checkout else "Change to a checkout whose stack is up"
        hint = f"{start}, or select another one with --profile, --stack-name, or GRANTWIRE_API and GRANTWIRE_TOKEN."
        raise CommandError(where, hint=hint, code="NO_INSTALLATION")
    return _checked(
        Target(
            "the local stack",
            str(description.get("api_url", "")),
            str(description.get("token", "")),
            checkout,
            str(description.get("nats_reader_url", "")),
        )
    )


def _checked(target: Target) -> Target:
    """Return a target with a usable address and a token."""
    parts = urlsplit(target.api_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        problem = f'The address of the API must begin with https:// or http://, not "{target.api_url}".'
        raise CommandError(problem, code="BAD_ADDRESS")
    if parts.scheme == "http" and not target.is_local:
        problem = f"{target.api_url} would send the token in clear text; http:// is for this machine only."
        raise AccessError(problem, hint="Use https://.", code="CLEAR_TEXT")
    if not target.token:
        hint = "Set GRANTWIRE_TOKEN, or store a token with `grantwire config set NAME --api URL`."
        raise AccessError(f"There is no token for {target.title}.", hint=hint, code="UNAUTHENTICATED")
    return target
