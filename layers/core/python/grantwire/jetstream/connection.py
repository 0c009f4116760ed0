"""The connection to NATS: over TLS, with credentials that may have been rotated.

A connection belongs to one event loop, and a frozen sandbox loses its socket: it never reconnects by itself, it is
checked when an invocation begins and made anew when it is gone. So nothing is ever buffered for later, and no late
publish can overtake one that came after it.

Where the settings ask for TLS, the server must prove its name with a certificate before it is told who we are.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from grantwire.errors import ConfigError, RetryableError
from grantwire.jetstream.errors import unreachable, wrap_exceptions
from grantwire.jetstream.message import StoredMessage
from grantwire.jetstream.settings import Access, access_of
from grantwire.observability import logger
from grantwire.secrets import secret_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.js import JetStreamContext

    from grantwire.jetstream.settings import NatsSettings
    from grantwire.settings import Certificates

# How a server says that it does not take these credentials.
_REFUSED = re.compile(r"authori[sz]ation|authentication", re.IGNORECASE)

# After a handshake that failed, nats-py waits for ever for the end of a connection that has ended.
_CLOSE_SECONDS = 0.2
_PING_SECONDS = 1


class NatsConnection:
    """The execution environment's connection to NATS. All of it belongs to one event loop."""

    def __init__(self, settings: NatsSettings, *, name: str = "grantwire") -> None:
        self._settings = settings
        self._name = name
        self._client: Client | None = None
        self._on_closed: list[Callable[[], None]] = []

    @property
    def settings(self) -> NatsSettings:
        """Where NATS is and how long to wait for it."""
        return self._settings

    @property
    def client(self) -> Client:
        """The live connection; another object after each reconnect. RetryableError if there is none."""
        if self._client is None or not self._client.is_connected:
            raise RetryableError("not connected to NATS")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream on the live connection."""
        return self.client.jetstream(timeout=self._settings.publish_timeout.total_seconds())

    @property
    def is_connected(self) -> bool:
        """Whether the connection was alive when last heard of."""
        return self._client is not None and self._client.is_connected

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a connection has ended."""
        self._on_closed.append(callback)

    async def connect(self) -> None:
        """Ping the connection there is, or make a new one; RetryableError if the server is out of reach."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                if self._client.is_connected:
                    await self._client.flush(timeout=_PING_SECONDS)
                    return
            await self.close()
        try:
            self._client = await _connect(self._settings, self._name, self._closed)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise unreachable(error) from error

    async def close(self) -> None:
        """Drop the connection; results that are still awaited end as unknown."""
        client, self._client = self._client, None
        await self._closed()
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def flush(self, seconds: int = _PING_SECONDS) -> None:
        """Return when the server has read everything that was sent; RetryableError if it does not answer."""
        with wrap_exceptions():
            await self.client.flush(timeout=seconds)

    async def get_message(self, stream: str, sequence: int) -> StoredMessage | None:
        """Read one message of a stream; None if it is gone.

        The stream's leader is asked, not the nearest replica, which may lag behind and not have it yet.
        """
        with wrap_exceptions():
            try:
                return StoredMessage.of(await self.jetstream.get_msg(stream, sequence))
            except NotFoundError:
                return None

    async def last_sequence(self, stream: str) -> int:
        """The sequence of the last message in a stream."""
        with wrap_exceptions():
            return (await self.jetstream.stream_info(stream)).state.last_seq

    async def _closed(self) -> None:
        for callback in self._on_closed:
            callback()


async def _connect(settings: NatsSettings, name: str, closed: Any) -> Client:
    """Open a connection; raises nats-py's own errors.

    Credentials of a secret that the server refuses are read once more: if they have been rotated, the new ones are
    tried.
    """
    arn = settings.secret_arn
    if arn is None:
        return await _open(settings, settings.access or Access(()), name, closed)
    secret = await asyncio.to_thread(secret_cache.get, arn)
    try:
        return await _open(settings, access_of(secret), name, closed)
    except nats.errors.Error as error:
        refused = _REFUSED.search(str(error)) is not None
        renewed = await asyncio.to_thread(secret_cache.refresh, arn, rejected=secret) if refused else None
        if renewed is None:
            raise
        logger.info("NATS credentials refreshed", arn=arn)
    return await _open(settings, access_of(renewed), name, closed)


async def _open(settings: NatsSettings, access: Access, name: str, closed: Any) -> Client:
    limit = settings.connect_timeout.total_seconds()
    verify = settings.tls != "off" or any(server.startswith("tls://") for server in access.servers)
    client = _VerifyingClient() if verify else Client()
    try:
        await asyncio.wait_for(
            client.connect(
                list(access.servers),
                name=name,
                allow_reconnect=False,
                connect_timeout=limit,  # type: ignore[arg-type]  # seconds, of any kind
                error_cb=_log_error,
                closed_cb=closed,
                skip_subject_validation=True,  # ours are from settings, which are checked, or from the server
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
            await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
        raise
    return client


class _VerifyingClient(Client):
    """A client that speaks TLS or not at all.

    nats-py sends the password in clear where the server's greeting does not ask for TLS, and anybody could have written
    that greeting. There is no public setting for this, so one private method is overridden;
    tests/integration/test_tls_nats.py fails if it no longer takes effect.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


def _context(authorities: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities.file, cadata=authorities.text)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _signing(credentials: str | None) -> dict[str, Any]:
    """What nats-py needs of a credentials file: the user's token, and a function that signs with the seed."""
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
    """Sign the nonce with an nkey: base32 of two bytes of prefix, the 32 bytes of the seed and a checksum."""
    from nacl.signing import SigningKey  # noqa: PLC0415 - few need it

    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
        signature = SigningKey(raw).sign(nonce.encode()).signature
    except ValueError:
        raise ConfigError(["the seed in the NATS credentials cannot be read"]) from None
    return base64.b64encode(signature)


async def _log_error(error: Exception) -> None:
    logger.warning("NATS connection error", reason=repr(error))
