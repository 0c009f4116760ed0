"""Profiles: named installations with their address and token, in `$XDG_CONFIG_HOME/grantwire/config.toml`.

    current = "prod"

    [profiles.prod]
    api = "https://abcdef1234.execute-api.eu-central-1.amazonaws.com/prod"
    token = "gw_live_…"

A profile has `api` or `stack_name` (with an optional `region`). The token may be absent; then GRANTWIRE_TOKEN is used.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from grantwire_cli.errors import CommandError
from grantwire_cli.files import read_private, write_private

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Profile:
    """One installation."""

    api: str = ""
    stack_name: str = ""
    region: str = ""
    token: str = field(default="", repr=False)
    nats_url: str = field(default="", repr=False)

    def public(self) -> dict[str, str]:
        """Return what may be shown: everything but the secrets, which are only marked as present."""
        shown = {name: value for name, value in asdict(self).items() if value}
        return {name: "(set)" if name in {"token", "nats_url"} else value for name, value in shown.items()}


@dataclass
class Config:
    """The content of the config file."""

    path: Path
    current: str = ""
    profiles: dict[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Return a profile.

        Raises CommandError if it does not exist.
        """
        if name not in self.profiles:
            known = f"The profiles are {', '.join(sorted(self.profiles))}." if self.profiles else "There is none yet."
            hint = f"{known} Create one with `grantwire config set {name} --api URL`."
            raise CommandError(f'There is no profile "{name}" in {self.path}.', hint=hint, code="NO_PROFILE")
        return self.profiles[name]

    def save(self) -> None:
        """Write the file with mode 0600."""
        write_private(self.path, _to_toml(self))


def config_path() -> Path:
    """Return the path of the config file, by the XDG base directory specification."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".config"
    return folder / "grantwire" / "config.toml"


def load_config(path: Path | None = None) -> Config:
    """Return the config; an empty one if there is no file.

    Raises AccessError if other accounts can read the file, and CommandError if its content is not valid.
    """
    path = path or config_path()
    text = read_private(path)
    if text is None:
        return Config(path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path} is not valid TOML: {error}.", code="BAD_CONFIG") from error
    profiles = {name: _parse_profile(path, name, value) for name, value in _table(content.pop("profiles", {})).items()}
    current = content.pop("current", "")
    if content or not isinstance(current, str):
        raise CommandError(
            f"{path} may have `current` and `profiles` only, not {', '.join(content)}.", code="BAD_CONFIG"
        )
    return Config(path, current, profiles)


def check_name(name: str) -> None:
    """Raise CommandError unless a name can be that of a profile."""
    if not _NAME.fullmatch(name):
        problem = f'"{name}" cannot be the name of a profile.'
        raise CommandError(problem, hint="Use up to 64 letters, digits, _ and -.", code="BAD_CONFIG")


def _parse_profile(path: Path, name: str, value: Any) -> Profile:
    allowed = {item.name for item in fields(Profile)}
    table = _table(value)
    if unknown := sorted(set(table) - allowed):
        problem = (
            f"{path}: profile {name} has unknown fields {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}."
        )
        raise CommandError(problem, code="BAD_CONFIG")
    if not all(isinstance(item, str) for item in table.values()):
        raise CommandError(f"{path}: the fields of profile {name} must be strings.", code="BAD_CONFIG")
    return Profile(**table)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _to_toml(config: Config) -> str:
    """Return the file's text. Keys are checked names, and a JSON string without control characters is a TOML string."""
    lines = [f"current = {json.dumps(config.current)}"] if config.current else []
    for name, profile in sorted(config.profiles.items()):
        lines += ["", f"[profiles.{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in asdict(profile).items() if value]
    return "\n".join(lines).lstrip("\n") + "\n"
