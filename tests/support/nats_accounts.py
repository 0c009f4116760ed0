"""NATS as companies run it: an operator signs accounts, an account signs users, a user signs a nonce.

Only the little of nkeys and of NATS's tokens that a server needs to let one user in.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from nacl.signing import SigningKey

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3
_SEED = 18 << 3
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT_LIMITS = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}


class Identity:
    """An operator, an account or a user: a key pair, with nkeys' way of writing it."""

    def __init__(self, kind: int) -> None:
        self._key = SigningKey.generate()
        self.public = _encoded(bytes([kind]) + bytes(self._key.verify_key))
        self.seed = _encoded(bytes([_SEED | kind >> 5, (kind & 31) << 3]) + bytes(self._key))

    def sign(self, subject: Identity, claims: dict[str, Any]) -> str:
        """A token that says something about `subject`, in this one's name."""
        body = {"jti": "test", "iat": 1, "iss": self.public, "name": "test", "sub": subject.public, "nats": claims}
        parts = [_base64(json.dumps(one).encode()) for one in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        signature = self._key.sign(".".join(parts).encode()).signature
        return ".".join([*parts, _base64(signature)])


class Company:
    """An operator with one account."""

    def __init__(self) -> None:
        self._operator, self._account = Identity(OPERATOR), Identity(ACCOUNT)

    def server_configuration(self) -> str:
        """What the server is told: the operator, and the account in the operator's words."""
        operator = self._operator.sign(self._operator, {"type": "operator", "version": 2})
        account = self._operator.sign(self._account, {"type": "account", "version": 2, "limits": _ACCOUNT_LIMITS})
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {self._account.public}: {account} }}\n"

    def credentials(self) -> str:
        """A credentials file for a new user."""
        user = Identity(USER)
        token = self._account.sign(user, {"type": "user", "version": 2, **_UNLIMITED})
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def _encoded(data: bytes) -> str:
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
