"""The settings of the functions that know the callers: authorize_caller, manage_clients and operate_clients.

authorize_caller reads clients. The other two change them, with a database role of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from grantwire.database import DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.settings import group, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_ENVIRONMENT_NAME = re.compile(r"[a-z0-9]{1,16}")


def _parse_environment_name(value: str) -> str:
    if not _ENVIRONMENT_NAME.fullmatch(value):
        raise ValueError(f"must be 1 to 16 lower-case letters and digits, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """The settings of authorize_caller, manage_clients and operate_clients."""

    database: DatabaseSettings = group(DatabaseSettings)
    # Part of every token, so that a token of another environment is rejected without a database query.
    environment: str = setting("TOKEN_ENVIRONMENT", _parse_environment_name)


# Without credentials of its own the function must not use those of the other functions, which cannot change clients.
_NO_CREDENTIALS = (
    "the administration of clients has its own database credentials: set ClientsDatabaseSecretArn of the stack"
    " (DATABASE_SECRET_ARN of a command) to a secret with a member of the role grantwire_clients; see docs/deploy.md"
)


def load_with_credentials(settings_class: type[T], environ: Mapping[str, str]) -> T:
    """Load the settings of a function that administrates clients; the ConfigError explains missing credentials."""
    try:
        return load(settings_class, environ)
    except ConfigError as error:
        has_credentials = any(environ.get(name, "").strip() for name in ("DATABASE_URL", "DATABASE_SECRET_ARN"))
        raise error if has_credentials else ConfigError([*error.problems, _NO_CREDENTIALS]) from None
