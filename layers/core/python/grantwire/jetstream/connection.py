"""The connection to NATS: over TLS, and with credentials that may have been rotated.

A connection belongs to one event loop, and a frozen sandbox loses its socket. So the connection never reconnects
automatically: it is checked when an invocation begins, and opened again if it was lost. Nothing is buffered during an
outage, so no delayed publish can overtake a later one.

If the settings require TLS, the server must present a valid certificate before it receives credentials.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from grantwire.errors import ConfigError, RetryableError
from grantwire.jetstream.errors import to_connect_error, wrap_exceptions
from grantwire.jetstream.message import StoredMessage
from grantwire.jetstream.settings import NatsEndpoint, parse_secret
from grantwire.observability import logger
from grantwire.secrets import secret_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nats.js import JetStreamContext

    from grantwire.jetstream.settings import NatsSettings

# Messages of a server that rejects the credentials.
_AUTHENTICATION_FAILED = re.compile(r"authori[sz]ation|authentication", re.IGNORECASE)
_PERMISSION_DENIED = re.compile(r"permissions violation", re.IGNORECASE)

# After a failed TLS handshake, `close` of nats-py never returns.
_CLOSE_TIMEOUT_SECONDS = 0.2
_PING_TIMEOUT_SECONDS = 1


class NatsConnection:
    """The NATS connection of an execution environment. It belongs to one event loop."""

    def __init__(self, settings: NatsSettings, *, name: str = "grantwire") -> None:
        self._settings = settings
        self._name = name
        self._client: Client | None = None
        self._closed_callbacks: list[Callable[[], None]] = []
        # The last permission that the server denied, and when. The server sends it without naming a request.
        self._denied: tuple[float, str] | None = None

    @property
    def settings(self) -> NatsSettings:
        """Servers, TLS and timeouts."""
        return self._settings

    @property
    def client(self) -> Client:
        """The connected client, a new object after each reconnect; raises RetryableError if there is none."""
        if self._client is None or not self._client.is_connected:
            raise RetryableError("not connected to NATS")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """The JetStream context of the connected client."""
        return self.client.jetstream(timeout=self._settings.publish_timeout.total_seconds())

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected, as far as it knows."""
        return self._client is not None and self._client.is_connected

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Register a callback for each time that a connection was closed."""
        self._closed_callbacks.append(callback)

    async def connect(self) -> None:
        """Check the connection with a ping, and open a new one if needed.

        Raises RetryableError if the server is unreachable.
        """
        if self._client is not None:
            with contextlib.suppress(Exception):
                if self._client.is_connected:
                    await self._client.flush(timeout=_PING_TIMEOUT_SECONDS)
                    return
            await self.close()
        try:
            self._client = await _connect(self._settings, self._name, self._log_error, self._notify_closed)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise to_connect_error(error) from error

    async def close(self) -> None:
        """Close the connection; messages in flight end with AmbiguousError."""
        client, self._client = self._client, None
        await self._notify_closed()
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def flush(self, seconds: int = _PING_TIMEOUT_SECONDS) -> None:
        """Wait until the server has processed everything sent; raise RetryableError if it does not respond."""
        with self.wrap_exceptions():
            await self.client.flush(timeout=seconds)

    @contextlib.contextmanager
    def wrap_exceptions(self) -> Iterator[None]:
        """Convert errors of nats-py inside the block to RetryableError.

        A request without permission gets no response, so the text of its timeout names the permission that was denied.
        """
        started_at = time.monotonic()
        try:
            with wrap_exceptions():
                yield
        except RetryableError as error:
            if denied := self.permission_denied_since(started_at):
                raise RetryableError(denied) from error
            raise

    def permission_denied_since(self, moment: float) -> str | None:
        """Return the last permission that the server denied, if that was after `moment` on the monotonic clock."""
        if self._denied is None or self._denied[0] < moment:
            return None
        return self._denied[1]

    async def get_message(self, stream: str, sequence: int) -> StoredMessage | None:
        """Read one message of a stream; return None if the stream no longer has it.

        The request goes to the leader of the stream, because a replica may lag behind and not have the message yet.
        """
        with self.wrap_exceptions():
            try:
                return StoredMessage.from_nats(await self.jetstream.get_msg(stream, sequence))
            except NotFoundError:
                return None

    async def sequences(self, stream: str) -> range:
        """Return the sequences from the first to the last message in a stream; messages in between may be deleted."""
        with self.wrap_exceptions():
            state = (await self.jetstream.stream_info(stream)).state
        return range(state.first_seq, state.last_seq + 1)

    async def _notify_closed(self) -> None:
        for callback in self._closed_callbacks:
            callback()

    async def _log_error(self, error: Exception) -> None:
        """Log an error that belongs to no request, and remember a denied permission for the request that waits."""
        if _PERMISSION_DENIED.search(str(error)):
            self._denied = (time.monotonic(), f"NATS denied a permission: {str(error).removeprefix('nats: ')}")
        logger.warning("NATS connection error", reason=repr(error))


async def _connect(settings: NatsSettings, name: str, on_error: Any, on_closed: Any) -> Client:
    """Open a connection; raise nats-py's own errors.

    If the server rejects the credentials of a secret, the secret is read again, and rotated credentials are tried once.
    """
    arn = settings.secret_arn
    if arn is None:
        return await _open(settings, settings.endpoint or NatsEndpoint(()), name, on_error, on_closed)
    secret = await asyncio.to_thread(secret_cache.get, arn)
    try:
        return await _open(settings, parse_secret(secret), name, on_error, on_closed)
    except nats.errors.Error as error:
        was_rejected = _AUTHENTICATION_FAILED.search(str(error)) is not None
        renewed = await asyncio.to_thread(secret_cache.refresh, arn, rejected=secret) if was_rejected else None
        if renewed is None:
            raise
        logger.info("NATS credentials refreshed", arn=arn)
    return await _open(settings, parse_secret(renewed), name, on_error, on_closed)


async def _open(settings: NatsSettings, endpoint: NatsEndpoint, name: str, on_error: Any, on_closed: Any) -> Client:
    timeout = settings.connect_timeout.total_seconds()
    use_tls = settings.tls != "off" or any(server.startswith("tls://") for server in endpoint.servers)
    client = _TlsOnlyClient() if use_tls else Client()
    try:
        await asyncio.wait_for(
            client.connect(
                list(endpoint.servers),
                name=name,
                allow_reconnect=False,
                # Even so, nats-py tries each server 60 times. It may lose the cancellation by the timeout below, which
                # then waits for all of them.
                max_reconnect_attempts=1,
                connect_timeout=timeout,  # type: ignore[arg-type]  # nats-py accepts fractions
                error_cb=on_error,
                inbox_prefix=settings.inbox_prefix,
                closed_cb=on_closed,
                skip_subject_validation=True,  # subjects come from validated settings or from the server
                tls=settings.tls_ca.ssl_context() if use_tls else None,
                user=endpoint.user,
                password=endpoint.password,
                token=endpoint.token,
                **_signing_options(endpoint.credentials),
            ),
            timeout=timeout,
        )
    except BaseException:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_SECONDS)
        raise
    return client


class _TlsOnlyClient(Client):
    """A client that never connects without TLS.

    nats-py sends the password unencrypted if the server's INFO message does not require TLS, and an attacker could
    forge that message. There is no public setting for this, so one private method is overridden.
    tests/integration/test_tls_nats.py fails if the override no longer has an effect.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


def _signing_options(credentials: str | None) -> dict[str, Any]:
    """Return the options of nats-py for a credentials file: callbacks that return the user JWT and sign a nonce.

    Raises ConfigError if the package that signs is not installed: on Lambda it is in a layer of its own.
    """
    if credentials is None:
        return {}
    if find_spec("nacl") is None:
        raise ConfigError(["the NATS secret has credentials: deploy with NatsCredentialsFile=true, which adds PyNaCl"])
    jwt, seed = (_extract_section(credentials, title) for title in ("NATS USER JWT", "USER NKEY SEED"))
    return {"user_jwt_cb": lambda: bytearray(jwt, "ascii"), "signature_cb": lambda nonce: _sign(seed, nonce)}


def _extract_section(credentials: str, title: str) -> str:
    match = re.search(rf"-----BEGIN {title}-----\s+([\w.=-]+)\s+-+END {title}-+", credentials)
    if match is None:
        raise ConfigError([f"the NATS credentials have no section {title}"])
    return match[1]


def _sign(seed: str, nonce: str) -> bytes:
    """Sign a nonce with an nkey seed: the base32 text of a prefix (2 bytes), the seed (32 bytes) and a checksum."""
    from nacl.signing import SigningKey  # noqa: PLC0415 - only credentials files need it

    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
        signature = SigningKey(raw).sign(nonce.encode()).signature
    except ValueError:
        raise ConfigError(["the NKEY seed in the NATS credentials is not valid"]) from None
    return base64.b64encode(signature)
