"""Events from NATS, decoded. The only module of the command that imports nats and protobuf.

It reads with the durable consumer of a reader's NATS user and acknowledges what it has yielded. So each event is
yielded at least once, and one that was yielded is not delivered to this consumer again.
"""

from __future__ import annotations

import asyncio
import contextlib
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from grantwire_cli.errors import AccessError, CommandError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MESSAGE = "grantwire.events.v1.EntitlementEvent"
FETCH_SECONDS = 5.0
BATCH = 100
INSTALL = "Install the extra: pip install 'grantwire-cli[nats]'."


def make_decoder() -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes an event into its fields.

    It raises ValueError for bytes that are no event. Raises CommandError if protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory  # noqa: PLC0415
    except ImportError as error:
        raise CommandError("Decoding events needs protobuf.", hint=INSTALL, code="MISSING_EXTRA") from error
    pool = descriptor_pool.DescriptorPool()
    content = resources.files("grantwire_cli").joinpath("entitlement_event.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    event_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))

    def decode(data: bytes) -> dict[str, Any]:
        try:
            event = event_class.FromString(data)
        except message.DecodeError as error:
            raise ValueError("not an event") from error
        fields: dict[str, Any] = json_format.MessageToDict(event, preserving_proto_field_name=True)
        return fields | {"version": int(fields.get("version", 0))}  # in JSON, a 64-bit number is text

    return decode


def read_events(
    url: str,
    *,
    stream: str,
    consumer: str = "",
    follow: bool = True,
    wanted: Callable[[dict[str, Any]], bool] = lambda _event: True,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield at most `limit` wanted events that the consumer has not acknowledged; with `follow`, wait for new ones.

    An event is acknowledged when the caller asks for the next one, or if it is not wanted. The consumer's default name
    is that of the URL's user. Raises CommandError, AccessError or UnavailableError.
    """
    count = 0
    decode = make_decoder()
    with asyncio.Runner() as runner, _reported_errors(url, stream, consumer):
        client, subscription = runner.run(_subscribe(url, stream, consumer))
        try:
            while True:
                messages = runner.run(_fetch(subscription))
                for item in messages:
                    event = _event(item, decode)
                    if wanted(event):
                        yield event
                        count += 1
                    runner.run(item.ack())
                    if count == limit:
                        return
                if not messages and not follow:
                    return
        finally:
            runner.run(client.close())


async def _subscribe(url: str, stream: str, consumer: str) -> tuple[Any, Any]:
    """Return a connection and the subscription of the durable consumer."""
    user = unquote(urlsplit(url).username or "")
    if not consumer and not user:
        raise CommandError("The NATS address has no user.", hint="Name the durable consumer with --consumer.")
    client = await nats().connect(
        url, inbox_prefix=f"_INBOX_{user}", connect_timeout=5, max_reconnect_attempts=3, error_cb=_ignore
    )
    try:
        return client, await client.jetstream().pull_subscribe_bind(consumer or user, stream)
    except BaseException:
        await client.close()
        raise


async def _ignore(_error: Exception) -> None:
    """Print no traceback of an attempt: the last one raises an error that is reported."""


async def _fetch(subscription: Any) -> list[Any]:
    """Return the next messages; none after a while without one."""
    try:
        messages: list[Any] = await subscription.fetch(BATCH, timeout=FETCH_SECONDS)
    except nats().errors.TimeoutError:
        return []
    return messages


@contextlib.contextmanager
def _reported_errors(url: str, stream: str, consumer: str) -> Iterator[None]:
    """Translate errors of nats-py."""
    errors = nats().errors
    try:
        yield
    except errors.AuthorizationError as error:
        raise AccessError("NATS refused the user or the password.", code="NATS_REFUSED") from error
    except nats().js.errors.NotFoundError as error:
        name = consumer or urlsplit(url).username
        raise CommandError(f"NATS has no consumer {name} of the stream {stream}.", code="NO_CONSUMER") from error
    except (OSError, errors.Error) as error:
        address = urlsplit(url)
        text = str(error) or type(error).__name__
        problem = f"NATS at {address.hostname}:{address.port} does not respond: {text}."
        raise UnavailableError(problem, hint="See `grantwire status`.", code="NATS_UNAVAILABLE") from error


def nats() -> Any:
    """Return the package nats.

    Raises CommandError if it is not installed.
    """
    try:
        import nats.errors  # noqa: PLC0415  # an optional package
        import nats.js.errors  # noqa: PLC0415
    except ImportError as error:
        raise CommandError("--nats needs nats-py.", hint=INSTALL, code="MISSING_EXTRA") from error
    return nats


def _event(item: Any, decode: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a message; for one that is no event, what is wrong with it."""
    position = {"stream_sequence": item.metadata.sequence.stream}
    try:
        return decode(item.data) | position
    except ValueError as error:
        return {"event_type": None, "problem": str(error), "data": item.data.hex()} | position
