"""Decentralized NATS authentication: an operator signs accounts, an account signs users, a user signs a nonce.

Implements only the parts of nkeys and of NATS's JWTs that these tests need: one user, or the accounts and users of a
deployment with their exports and imports.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from nacl.signing import SigningKey

from infra.local.servers.nats_users import API, MAPPED_API, OWNER, is_pull, list_users, map_subject

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.servers.nats_users import Names, User

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3
_SEED = 18 << 3
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
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

    def sign_nonce(self, nonce: str) -> bytes:
        """Return the signature with which a client proves its identity."""
        return base64.b64encode(self._key.sign(nonce.encode()).signature)


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
        return _credentials(*_sign_user(self._account, {}))


class SignedDeployment:
    """NATS operator with the accounts of a deployment: that of the streams, and one for each user.

    The exports are private, so an account can import one only with a token that the account of the streams has signed.
    """

    def __init__(self, names: Names) -> None:
        self._users = {user.name: user for user in list_users(names)}
        self._operator, self._system = Identity(OPERATOR), Identity(ACCOUNT)
        self._accounts = {name: Identity(ACCOUNT) for name in (OWNER, *self._users)}

    def server_configuration(self, store: Path) -> str:
        """Return the server configuration that trusts this operator and knows its accounts."""
        operator = self._operator.sign(self._operator, {"type": "operator", "version": 2})
        tokens = {self._system.public: self._sign_account(self._system, {})}
        tokens[self._accounts[OWNER].public] = self._sign_account(
            self._accounts[OWNER],
            {"limits": _ACCOUNT_LIMITS | _JETSTREAM, "exports": self._exports()},
        )
        for name, user in self._users.items():
            mappings = {f"{API}.>": [{"subject": f"{MAPPED_API}.>"}]}
            claims = {"imports": self._imports(user), "mappings": mappings}
            tokens[self._accounts[name].public] = self._sign_account(self._accounts[name], claims)
        preload = "\n".join(f"  {public}: {token}" for public, token in tokens.items())
        return (
            f"jetstream {{ store_dir: {json.dumps(str(store))} }}\noperator: {operator}\n"
            f"system_account: {self._system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def credentials(self, name: str) -> str:
        """Return the content of a credentials file for one user of the deployment."""
        return _credentials(*self._sign_user(name))

    def login(self, name: str) -> dict[str, Any]:
        """Return the options with which nats-py connects as one user.

        A name that is not in the deployment: an unrestricted user in the account of the streams.
        """
        user, token = self._sign_user(name)
        return {"user_jwt_cb": lambda: bytearray(token, "ascii"), "signature_cb": user.sign_nonce}

    def _sign_user(self, name: str) -> tuple[Identity, str]:
        if name not in self._users:
            return _sign_user(self._accounts[OWNER], {})
        user = self._users[name]
        publish = {"allow": [map_subject(subject) for subject in user.publish]}
        return _sign_user(self._accounts[name], {"pub": publish, "sub": {"allow": [f"{user.inbox_prefix}.>"]}})

    def _sign_account(self, account: Identity, claims: Mapping[str, Any]) -> str:
        return self._operator.sign(account, {"type": "account", "version": 2, "limits": _ACCOUNT_LIMITS, **claims})

    def _exports(self) -> list[dict[str, Any]]:
        subjects = dict.fromkeys(subject for user in self._users.values() for subject in user.publish)
        return [
            {
                "name": subject,
                "subject": subject,
                "type": "service",
                "token_req": True,
                "response_type": "Stream" if is_pull(subject) else "Singleton",
            }
            for subject in subjects
        ]

    def _imports(self, user: User) -> list[dict[str, Any]]:
        owner = self._accounts[OWNER]
        return [
            {
                "name": subject,
                "subject": subject,
                "account": owner.public,
                "local_subject": map_subject(subject),
                "type": "service",
                "token": owner.sign(
                    self._accounts[user.name],
                    {"type": "activation", "version": 2, "subject": subject, "kind": "service"},
                ),
            }
            for subject in user.publish
        ]


def _sign_user(account: Identity, permissions: Mapping[str, Any]) -> tuple[Identity, str]:
    """Return a new user of an account, and its JWT."""
    user = Identity(USER)
    return user, account.sign(user, {"type": "user", "version": 2, **_UNLIMITED, **permissions})


def _credentials(user: Identity, token: str) -> str:
    """Return the content of a credentials file."""
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
