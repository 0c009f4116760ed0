"""Decentralized NATS authentication: an operator signs accounts, an account signs users, a user signs a nonce.

Implements only the parts of nkeys and of NATS's JWTs that a server needs to authenticate one user.
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
    """Key pair of an operator, an account or a user, in the nkeys encoding."""

    def __init__(self, kind: int) -> None:
        self._key = SigningKey.generate()
        self.public = _encode_nkey(bytes([kind]) + bytes(self._key.verify_key))
        self.seed = _encode_nkey(bytes([_SEED | kind >> 5, (kind & 31) << 3]) + bytes(self._key))

    def sign(self, subject: Identity, claims: dict[str, Any]) -> str:
        """Return a JWT with `claims` about `subject`, signed by this identity."""
        body = {"jti": "test", "iat": 1, "iss": self.public, "name": "test", "sub": subject.public, "nats": claims}
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        parts = [_base64(json.dumps(part).encode()) for part in (header, body)]
        signature = self._key.sign(".".join(parts).encode()).signature
        return ".".join([*parts, _base64(signature)])


class Operator:
    """NATS operator with one account."""

    def __init__(self) -> None:
        self._operator, self._account = Identity(OPERATOR), Identity(ACCOUNT)

    def server_configuration(self) -> str:
        """Return the server configuration that trusts this operator and knows its account."""
        operator = self._operator.sign(self._operator, {"type": "operator", "version": 2})
        account = self._operator.sign(self._account, {"type": "account", "version": 2, "limits": _ACCOUNT_LIMITS})
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {self._account.public}: {account} }}\n"

    def credentials(self) -> str:
        """Return the content of a credentials file for a new user."""
        user = Identity(USER)
        token = self._account.sign(user, {"type": "user", "version": 2, **_UNLIMITED})
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def _encode_nkey(data: bytes) -> str:
    with_checksum = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(with_checksum).decode().rstrip("=")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
