"""Opaque bearer tokens: `gw_<environment>_<client id>_<secret>`.

- The prefix lets secret scanners find a leaked token.
- The environment makes a token invalid in every other environment.
- The client id finds the client by primary key, so no index over token hashes is needed.
- The secret has 256 random bits and cannot be guessed, so a plain SHA-256 hash protects it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass, field

from grantwire.errors import UnauthenticatedError

# ValidationExpression in template.yaml has the same pattern, so API Gateway rejects any other header itself. The scheme
# is case-insensitive (RFC 9110), the token is not.
_HEADER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +gw_([a-z0-9]{1,16})_([a-z0-9]{12})_([A-Za-z0-9]{43})")
_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43
CLIENT_ID_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. Its repr does not contain the secret; `text` does."""

    environment: str
    client_id: str
    secret: str = field(repr=False)

    @classmethod
    def mint(cls, environment: str, client_id: str) -> Token:
        """Create a token with a new random secret."""
        return cls(environment, client_id, "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(_SECRET_LENGTH)))

    @classmethod
    def from_header(cls, header: str) -> Token:
        """Parse an Authorization header.

        Raise UnauthenticatedError if it is malformed. The message does not contain any part of the header.
        """
        parts = _HEADER.fullmatch(header)
        if parts is None:
            raise UnauthenticatedError(
                "Authorization header must have the form: Bearer gw_<environment>_<client id>_<secret>"
            )
        return cls(*parts.groups())

    @property
    def text(self) -> str:
        """The token as the client sends it. It is shown once, when the token is created."""
        return f"gw_{self.environment}_{self.client_id}_{self.secret}"

    @property
    def hash(self) -> str:
        """The SHA-256 of the token, in hex. Only this is stored."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def generate_client_id() -> str:
    """Return a random client id. A collision is rejected by the primary key of `api_clients`."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(CLIENT_ID_LENGTH))
