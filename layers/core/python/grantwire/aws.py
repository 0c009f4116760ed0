"""Requests to AWS that are signed without boto3 (Signature Version 4), and the identity that signs them.

boto3 and a client of it cost a cold start about 0.4 s at the CPU share of 512 MB. A function reads one secret, so a
signature and one HTTPS request are enough. On Lambda the identity is in the environment and does not change as long as
the execution environment lives. Elsewhere, for example for an operator with a profile, boto3 finds it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from grantwire.errors import RetryableError
from grantwire.tls import certificates

if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping

_ALGORITHM = "AWS4-HMAC-SHA256"
# RDS accepts a token for this long. It counts for the login only: an open session is not ended.
TOKEN_SECONDS = 900
# With two attempts a call ends before the timeout of any function.
_CONNECT_SECONDS = 1.0
_READ_SECONDS = 2.0
_SERVER_ERROR = 500
_OK = 200


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
    """The identity and the endpoint of this process, if its environment has them."""

    identity: Identity | None = None
    endpoint = ""


def configure(environ: Mapping[str, str]) -> None:
    """Use the identity of the environment, if it has one, and the endpoint of an emulator."""
    _Configured.identity = Identity.from_environ(environ)
    _Configured.endpoint = environ.get("AWS_ENDPOINT_URL_SECRETS_MANAGER") or environ.get("AWS_ENDPOINT_URL") or ""


def current_identity() -> Identity:
    """Return the identity of this process. Raises RetryableError if none can be found."""
    return _Configured.identity or _identity_of_boto3()


def read_secret(arn: str) -> dict[str, Any]:
    """Return what Secrets Manager has for a secret. Raises RetryableError if it cannot be read."""
    found = current_identity()
    parts = arn.split(":")
    region = parts[3] if len(parts) > 3 else found.region  # noqa: PLR2004  # arn:partition:service:region:…
    identity = Identity(region, found.access_key, found.secret_key, found.session_token)
    body = json.dumps({"SecretId": arn}).encode()
    status, text = _call("secretsmanager", "GetSecretValue", identity, body)
    if status != _OK:
        raise RetryableError(f"Secrets Manager: status {status}, {_error_type(text)}")
    content: dict[str, Any] = json.loads(text)
    return content


def _call(service: str, action: str, identity: Identity, body: bytes) -> tuple[int, bytes]:
    """Send a request, and once more after an error of the network or the service; return status and body."""
    endpoint = _endpoint(service, identity.region)
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"{service}.{action}"}
    for is_last in (False, True):
        host, now = urlsplit(endpoint).netloc, datetime.now(UTC)
        signed = sign_request(identity, service, host=host, headers=headers, body=body, now=now)
        try:
            status, text = _post(endpoint, signed, body)
        except OSError as error:
            if is_last:
                raise RetryableError(f"{host}: {type(error).__name__} {error}") from error
            continue
        if is_last or status < _SERVER_ERROR:
            return status, text
    raise AssertionError  # the last attempt returns or raises


def _endpoint(service: str, region: str) -> str:
    """Return the address of a service: of the emulator, of AWS, or for an operator that of boto3's configuration."""
    if _Configured.endpoint:
        return _Configured.endpoint
    if _Configured.identity is None:
        return _endpoint_of_boto3(service, region)
    return f"https://{service}.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def _post(endpoint: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Send a request over a connection of its own, which is closed."""
    with closing(_connection(endpoint)) as connection:
        connection.connect()
        connection.sock.settimeout(_READ_SECONDS)
        connection.request("POST", "/", body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read()


def _connection(endpoint: str) -> http.client.HTTPConnection:
    """Return a connection; without TLS only to an emulator, whose endpoint is http://."""
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415  # not if the URL needs no secret

    parts = urlsplit(endpoint)
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS)
    context = certificates("system").ssl_context()
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS, context=context)


def _error_type(text: bytes) -> str:
    """Return the name of an error of AWS; its message could quote the request."""
    try:
        return str(json.loads(text)["__type"]).rpartition("#")[2]
    except (ValueError, KeyError, TypeError):
        return "no error of AWS"


def _endpoint_of_boto3(service: str, region: str) -> str:
    """Return the endpoint that boto3 uses, which a profile can change."""
    import boto3  # noqa: PLC0415 - see the module docstring

    create: Any = boto3.client
    return str(create(service, region_name=region).meta.endpoint_url)


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
