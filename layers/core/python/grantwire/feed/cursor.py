"""Cursors of the change feed and page tokens of the snapshot: opaque text for callers, URL-safe.

Both begin with their kind, which is also the version of their format, and with the identity of the installation. A
cursor is not secret and not signed: a caller who changes it only reads from another position.
"""

from __future__ import annotations

import base64
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from grantwire.errors import GoneError

if TYPE_CHECKING:
    from typing import Self

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)
_LAST_ID = UUID(int=2**128 - 1)

_MAX_LENGTH = 2048
_FEED_KIND, _SNAPSHOT_KIND = 1, 2
_FEED = struct.Struct(">B8sQq16s")
_SNAPSHOT = struct.Struct(">B8sQ")
_SEPARATOR = "\0"  # PostgreSQL's text never contains it

REPLACED_MESSAGE = (
    "after is no longer valid, because the database was restored or replaced;"
    " read GET /v1/snapshot and continue from its changes_after"
)
DROPPED_MESSAGE = (
    "changes after this cursor are no longer kept; read GET /v1/snapshot and continue from its changes_after"
)


class Position(NamedTuple):
    """A position in the feed: after the change with these values."""

    transaction_id: int
    occurred_at: datetime
    operation_id: UUID

    @classmethod
    def before(cls, transaction_id: int) -> Self:
        """Return the position before all changes of this transaction and of those after it."""
        return cls(transaction_id - 1, _LAST_TIME, _LAST_ID)


class FeedCursor(NamedTuple):
    """A position in the feed of one installation."""

    installation: str
    position: Position

    def encode(self) -> str:
        """Return the cursor as text."""
        time = (self.position.occurred_at - _EPOCH) // _MICROSECOND
        identity = bytes.fromhex(self.installation)
        return _to_text(
            _FEED.pack(_FEED_KIND, identity, self.position.transaction_id, time, self.position.operation_id.bytes)
        )

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the cursor that `text` encodes. Raises ValueError if it is none."""
        kind, identity, transaction_id, time, operation_id = _unpack(_FEED, _from_text(text))
        try:
            occurred_at = _EPOCH + time * _MICROSECOND
        except OverflowError:
            raise ValueError("the time is out of range") from None
        if kind != _FEED_KIND:
            raise ValueError("not a cursor of the change feed")
        return cls(identity.hex(), Position(transaction_id, occurred_at, UUID(bytes=operation_id)))


class SnapshotToken(NamedTuple):
    """The last entitlement of a page, and the transaction before which the first page saw every change."""

    installation: str
    visible_before: int
    user_id: str
    stock_keeping_unit: str

    def encode(self) -> str:
        """Return the token as text."""
        head = _SNAPSHOT.pack(_SNAPSHOT_KIND, bytes.fromhex(self.installation), self.visible_before)
        return _to_text(head + f"{self.user_id}{_SEPARATOR}{self.stock_keeping_unit}".encode())

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the token that `text` encodes. Raises ValueError if it is none."""
        raw = _from_text(text)
        kind, identity, visible_before = _unpack(_SNAPSHOT, raw[: _SNAPSHOT.size])
        names = raw[_SNAPSHOT.size :].decode().split(_SEPARATOR)
        if kind != _SNAPSHOT_KIND or len(names) != 2 or not visible_before:  # noqa: PLR2004
            raise ValueError("not a page token of the snapshot")
        return cls(identity.hex(), visible_before, *names)


def require_same_history(installation: str, current: str, transaction_id: int, first_unused: int) -> None:
    """Raise GoneError if a cursor of `installation` does not belong to the `current` history of the database.

    A transaction id that no transaction has had yet is from a history that was replaced by an older copy.
    """
    if installation != current or transaction_id >= first_unused:
        raise GoneError(REPLACED_MESSAGE)


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    """Return the bytes of a text that `_to_text` made. Raises ValueError for any other text."""
    if len(text) > _MAX_LENGTH:
        raise ValueError("too long")
    raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _to_text(raw) != text:
        raise ValueError("not the canonical form")
    return raw


def _unpack(layout: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack(raw)
    except struct.error:
        raise ValueError("wrong length") from None
