"""Opaque bearer tokens: `gw_<environment>_<client id>_<secret>`.

The prefix lets a scanner find a leaked one, the environment keeps a token of one stage from being tried at another, and
the id says whose it is, so that looking it up needs no index over secrets. The secret has 256 random bits: nobody
guesses it, so a plain hash of it is enough.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass, field

from grantwire.errors import UnauthenticatedError

# The template's ValidationExpression says the same, so that API Gateway refuses anything else by itself.
_HEADER = re.compile(r"[Bb]earer +gw_([a-z0-9]{1,16})_([a-z0-9]{12})_([A-Za-z0-9]{43})")
_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Token:
    """A token, which never shows its secret unless asked for `text`."""

    environment: str
    client_id: str
    secret: str = field(repr=False)

    @classmethod
    def mint(cls, environment: str, client_id: str) -> Token:
        """A new one for a client."""
        return cls(environment, client_id, "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(43)))

    @classmethod
    def of_header(cls, header: str) -> Token:
        """Read an Authorization header, or raise UnauthenticatedError, whose message says nothing of what was sent."""
        parts = _HEADER.fullmatch(header)
        if parts is None:
            raise UnauthenticatedError("send Authorization: Bearer gw_…")
        return cls(*parts.groups())

    @property
    def text(self) -> str:
        """What the client sends; shown once, when it is made."""
        return f"gw_{self.environment}_{self.client_id}_{self.secret}"

    @property
    def hash(self) -> str:
        """What is stored."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def new_client_id() -> str:
    """An id that no other client has."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(12))
