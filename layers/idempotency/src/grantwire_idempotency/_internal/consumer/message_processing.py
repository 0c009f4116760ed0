"""One message: its key, its items, the attempts at it, and what happens after the last one (C12, C21).

A message that fails is retried with backoff while its key is claimed. After the last attempt, or after a permanent
error, the dead-letter hook gets the message. The store remembers this, so the message is recognised if it is delivered
again. Without a hook, the message returns to the queue, and its key is released.

All methods are steps without I/O; see `steps`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.consumer.retries import RetryLoop, RetryPolicy
from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.foundation.steps import original
from grantwire_idempotency._internal.jobs.execution import Execution, Outcome
from grantwire_idempotency._internal.jobs.work import LEASE_MARGIN, HandledFailureError, call_once, describe, to_key
from grantwire_idempotency._internal.stores.interface import Key
from grantwire_idempotency.errors import (
    BadRequestError,
    DeadLetteredError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Steps
    from grantwire_idempotency._internal.keys.messages import Message
    from grantwire_idempotency._internal.stores.interface import Claim

# The start of the stored error of a dead letter, before the id of the message.
_DEAD_LETTER = "dead letter "


@dataclass(frozen=True, slots=True)
class MessageProcessing:
    """How a consumer processes one message; the fields are the arguments of the consumer."""

    execution: Execution
    processor: Callable[[Message], Any]
    identify: Callable[..., Key | str | None]
    items: Callable[[Message], Iterable[tuple[str, Any]]] | None
    retry: RetryPolicy
    dead_letter: Callable[[Message, Exception], Any] | None
    is_async: bool
    logger: LibraryLogger
    sleep: Callable[[float], Any]
    rand: Callable[[], float]
    clock: Callable[[], float]

    def process(
        self, message: Message, lease: timedelta, retry_time: timedelta, *, redrive: bool = False
    ) -> Steps[Outcome]:
        """Process a message, or each of its items under the key `message:item`."""
        retries = self._new_retries(retry_time)
        try:
            key = self.make_key(message)
            items = None if self.items is None else _read_items(self.items(message))
        except Exception as error:  # noqa: BLE001 - a retry of the same message would fail in the same way
            return (yield from self._fail(message, error, retries))
        if items is None:
            return (yield from self._process_one(message, key, lease, retries, redrive=redrive))
        values: list[Any] = []
        replayed = True
        deadline = self.clock() + lease.total_seconds()
        for identifier, payload in items.items():
            item = replace(message, id=f"{message.id}:{identifier}", body=payload)
            item_key = replace(key, value=f"{key.value}:{escape(identifier)}", message_id=item.id)
            time_left = timedelta(seconds=max(deadline - self.clock(), LEASE_MARGIN.total_seconds()))
            item_retries = RetryLoop(self.retry, retries.deadline, self.clock, self.sleep, self.rand, self.logger)
            outcome = yield from self._process_one(item, item_key, time_left, item_retries, redrive=redrive)
            values.append(outcome.value)
            replayed = replayed and outcome.replayed
        return Outcome(values, replayed=replayed and bool(values))

    def _process_one(
        self, message: Message, key: Key, lease: timedelta, retries: RetryLoop, *, redrive: bool
    ) -> Steps[Outcome]:
        is_redrive = redrive or bool(message.attributes.get("redrive"))
        recognise = None if is_redrive else lambda claim: self._recognise(message, claim)
        try:
            return (yield from self.execution.run(key, lease, lambda: self._attempt(message, retries), recognise))
        except HandledFailureError:
            cause: Any = original(retries.error) if retries.error is not None else None
            return Outcome(dead_letter=cause)
        except Exception as error:
            if error is retries.error and retries.is_final:
                raise
            # If the library itself rejects the message, no store can hold its key. Any other error of the library is
            # not caused by the message.
            if error is not retries.error and isinstance(error, RejectedError):
                return (yield from self._fail(message, error, retries))
            self._log_return_to_queue(message, error, retries)
            raise

    def _attempt(self, message: Message, retries: RetryLoop) -> Steps[Any]:
        """Call the processor until it succeeds; pass the message to the dead-letter hook while the key is claimed."""
        call = lambda: call_once(lambda: self.processor(message), is_async=self.is_async)  # noqa: E731 - the work
        try:
            return (yield from retries.run(call, {"message_id": message.id}))
        except Exception as error:
            if not retries.is_final:
                raise
            yield from self._fail(message, error, retries)
            raise HandledFailureError(f"{_DEAD_LETTER}{message.id}: {describe(error)}") from error

    def _recognise(self, message: Message, claim: Claim) -> Outcome | None:
        """Return an outcome if the dead-letter hook has already taken this message."""
        start = f"{_DEAD_LETTER}{message.id}: "
        if claim.last_error is None or not claim.last_error.startswith(start):
            return None
        logger = self.logger
        logger.info("message is already a dead letter, skipped", extra=self._log_fields(message))
        return Outcome(replayed=True, dead_letter=DeadLetteredError(claim.last_error.removeprefix(start)))

    def _new_retries(self, retry_time: timedelta) -> RetryLoop:
        deadline = self.clock() + retry_time.total_seconds()
        return RetryLoop(self.retry, deadline, self.clock, self.sleep, self.rand, self.logger)

    def make_key(self, message: Message) -> Key:
        """Return the key of a message, without the name of the consumer."""
        key = to_key(self.identify(message)) or Key(message.id)
        return replace(key, message_id=key.message_id or message.id)

    def _log_return_to_queue(self, message: Message, error: Exception, retries: RetryLoop) -> None:
        logger, fields = self.logger, self._log_fields(message)
        if error is retries.error:
            logger.warning(
                "message failed, no time left to retry", exc_info=error, extra={**fields, "attempts": retries.attempts}
            )
        elif isinstance(error, RequestInProgressError):
            logger.info("message already in progress", extra=fields)
        elif isinstance(error, RetryableError):
            logger.warning(
                "idempotency store unavailable, message returned to queue", extra={**fields, "error": str(error)}
            )
        else:
            logger.error("unexpected error, message returned to queue", exc_info=error, extra=fields)

    def _fail(self, message: Message, error: Exception, retries: RetryLoop) -> Steps[Outcome]:
        """Pass a failed message to the dead-letter hook; raise its error if there is no hook or the hook fails."""
        logger, fields, hook = self.logger, self._log_fields(message), self.dead_letter
        cause: Any = original(error)
        logger.error("message failed", exc_info=cause, extra={**fields, "attempts": retries.attempts})
        if hook is None:
            raise error
        try:
            yield from call_once(lambda: hook(message, cause), is_async=self.is_async)
        except Exception:
            logger.exception("dead-letter hook failed, message returned to queue", extra=fields)
        else:
            return Outcome(dead_letter=cause)
        raise error

    def _log_fields(self, message: Message) -> dict[str, Any]:
        """Return the fields of every log line about a message."""
        return {"message_id": message.id, "task_type": self.execution.name}


def _read_items(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Return the JSON of each item by its id. Raises BadRequestError for an invalid or repeated id."""
    items: dict[str, str] = {}
    for identifier, payload in pairs:
        if not isinstance(identifier, str) or not identifier or identifier in items:
            raise BadRequestError("each item of a message must have its own id, a non-empty string")
        items[identifier] = json.dumps(payload)
    return items
