"""Making a connection: over TLS, with credentials that may have been rotated."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
from typing import TYPE_CHECKING, Any

import nats.errors

from grantwire.errors import ConfigError
from grantwire.jetstream.access import Access, access_of
from grantwire.jetstream.client import QuickClient
from grantwire.observability import log
from grantwire.secrets import cached

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grantwire.jetstream.access import BrokerSettings
    from grantwire.settings import Certificates

    Closed = Callable[[], Awaitable[None]]

# How a server says that it does not take these credentials.
_REFUSED = re.compile(r"authori[sz]ation|authentication", re.IGNORECASE)

# After a handshake that failed, the client waits for ever for the end of a connection that has ended.
_CLOSES_WITHIN = 0.2


async def connect(settings: BrokerSettings, *, name: str, closed: Closed) -> QuickClient:
    """A new connection; raises the client's own errors. It calls `closed` at its end, and never connects again.

    Credentials of a secret that the server refuses are looked up once more: if they have been rotated, the new ones are
    tried.
    """
    arn = settings.secret_arn
    if arn is None:
        return await _open(settings, settings.access or Access(()), name, closed)
    secret = await asyncio.to_thread(cached.text, arn)
    try:
        return await _open(settings, access_of(secret), name, closed)
    except nats.errors.Error as error:
        refused = _REFUSED.search(str(error)) is not None
        renewed = await asyncio.to_thread(cached.renewed, arn, refused=secret) if refused else None
        if renewed is None:
            raise
        log.info("NATS's credentials were rotated", arn=arn)
    return await _open(settings, access_of(renewed), name, closed)


async def _open(settings: BrokerSettings, access: Access, name: str, closed: Closed) -> QuickClient:
    limit = settings.connect_timeout.total_seconds()
    verify = settings.tls != "off" or any(server.startswith("tls://") for server in access.servers)
    client = _VerifyingClient() if verify else QuickClient()
    try:
        await asyncio.wait_for(
            client.connect(
                list(access.servers),
                name=name,
                allow_reconnect=False,
                connect_timeout=limit,  # type: ignore[arg-type]  # seconds, of any kind
                error_cb=_log_error,
                closed_cb=closed,
                tls=_context(settings.tls_ca) if verify else None,
                user=access.user,
                password=access.password,
                token=access.token,
                **_signing(access.credentials),
            ),
            timeout=limit,
        )
    except BaseException:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), _CLOSES_WITHIN)
        raise
    return client


class _VerifyingClient(QuickClient):
    """A client that speaks TLS or not at all, whatever the server's greeting says, which anybody could have written."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


def _context(authorities: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities.file, cadata=authorities.text)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _signing(credentials: str | None) -> dict[str, Any]:
    """What the client needs for the contents of a credentials file: the user's token, and the seed to sign with."""
    if credentials is None:
        return {}
    token, seed = (_section(credentials, title) for title in ("NATS USER JWT", "USER NKEY SEED"))
    return {"user_jwt_cb": lambda: bytearray(token, "ascii"), "signature_cb": lambda nonce: _sign(seed, nonce)}


def _section(credentials: str, title: str) -> str:
    found = re.search(rf"-----BEGIN {title}-----\s+([\w.=-]+)\s+-+END {title}-+", credentials)
    if found is None:
        raise ConfigError([f"the NATS credentials have no {title}"])
    return found[1]


def _sign(seed: str, nonce: str) -> bytes:
    """The nonce signed with an nkey: base32 of two bytes of prefix, the 32 bytes of the seed and a checksum."""
    from nacl.signing import SigningKey  # noqa: PLC0415 - few need it

    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
        signature = SigningKey(raw).sign(nonce.encode()).signature
    except ValueError:
        raise ConfigError(["the seed in the NATS credentials cannot be read"]) from None
    return base64.b64encode(signature)


def advice(error: Exception) -> str:
    """What a person should do about a connection that TLS did not allow."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:
            return "; connect by a name that the server's certificate holds"
        return "; NATS_TLS_CA must hold the authority that signed the server's certificate"
    return "; does this port speak TLS?" if isinstance(error, ssl.SSLError) else ""


async def _log_error(error: Exception) -> None:
    log.warning("NATS connection", reason=repr(error))
