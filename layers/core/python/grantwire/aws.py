"""Requests to AWS that are signed without boto3 (Signature Version 4), and the identity that signs them.

boto3 and a client of it cost a cold start about 0.4 s at the CPU share of 512 MB. A function reads one secret, so a
signature and one HTTPS request are enough. On Lambda the identity is in the environment and does not change as long as
the execution environment lives. Elsewhere, for example for an operator with a profile, boto3 finds it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from grantwire.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_ALGORITHM = "AWS4-HMAC-SHA256"
# RDS accepts a token for this long. It counts for the login only: an open session is not ended.
TOKEN_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials and their region. They are temporary if there is a session token."""

    region: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False, default="")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Identity | None:
        """Return the identity that Lambda puts into the environment; None if it is not complete."""
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
        access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
        if not (region and access_key and secret_key):
            return None
        return cls(region, access_key, secret_key, environ.get("AWS_SESSION_TOKEN", ""))


class _Configured:
    """The identity and the endpoints of this process."""

    identity: Identity | None = None


def configure(environ: Mapping[str, str]) -> None:
    """Use the identity of the environment, if it has one."""
    _Configured.identity = Identity.from_environ(environ)


def current_identity() -> Identity:
    """Return the identity of this process. Raises RetryableError if none can be found."""
    return _Configured.identity or _identity_of_boto3()


def _identity_of_boto3() -> Identity:
    """Return the identity that boto3 finds: of a profile, a container or a machine. It can expire."""
    import boto3  # noqa: PLC0415 - see the module docstring
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    try:
        session = boto3.Session()
        credentials = session.get_credentials()
    except BotoCoreError as error:
        raise RetryableError(f"no credentials of AWS: {error}") from error
    if credentials is None or session.region_name is None:
        raise RetryableError("no credentials of AWS, or no region: set AWS_PROFILE, or AWS_REGION and the credentials")
    frozen = credentials.get_frozen_credentials()
    return Identity(session.region_name, frozen.access_key or "", frozen.secret_key or "", frozen.token or "")


def database_token(identity: Identity, *, host: str, port: int, user: str, now: datetime) -> str:
    """Return a token that RDS accepts instead of the password of `user` for 15 minutes: a signed URL without https://."""
    address, scope = f"{host}:{port}", _scope(identity, "rds-db", now)
    query = {
        "Action": "connect",
        "DBUser": user,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{identity.access_key}/{scope}",
        "X-Amz-Date": _timestamp(now),
        "X-Amz-Expires": str(TOKEN_SECONDS),
        "X-Amz-SignedHeaders": "host",
    }
    if identity.session_token:
        query["X-Amz-Security-Token"] = identity.session_token
    text = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
    signature = _sign(identity, scope, now, ["GET", "/", text, f"host:{address}\n", "host", _hash(b"")])
    return f"{address}/?{text}&X-Amz-Signature={signature}"


def sign_request(
    identity: Identity, service: str, *, host: str, headers: Mapping[str, str], body: bytes, now: datetime
) -> dict[str, str]:
    """Return the headers of a POST request to the path `/` of a service, with its signature."""
    scope = _scope(identity, service, now)
    signed = {name.lower(): value for name, value in headers.items()} | {"host": host, "x-amz-date": _timestamp(now)}
    if identity.session_token:
        signed["x-amz-security-token"] = identity.session_token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    signature = _sign(identity, scope, now, ["POST", "/", "", lines, names, _hash(body)])
    credential = f"{identity.access_key}/{scope}"
    signed["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return signed


def _sign(identity: Identity, scope: str, now: datetime, canonical: list[str]) -> str:
    """Sign the lines of a canonical request."""
    text = "\n".join([_ALGORITHM, _timestamp(now), scope, _hash("\n".join(canonical).encode())])
    key = f"AWS4{identity.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _scope(identity: Identity, service: str, now: datetime) -> str:
    return f"{now:%Y%m%d}/{identity.region}/{service}/aws4_request"


def _timestamp(now: datetime) -> str:
    return f"{now:%Y%m%dT%H%M%SZ}"


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
