"""`IdempotentConsumer`: each message has its effect once, even if it is redelivered (C8, C12, C21).

    consumer = IdempotentConsumer(store, process, name="orders")
    handler = consumer.handle                                         # a Lambda behind SQS, SNS, EventBridge or Kafka
    consumer.process(message)                                         # any other source

`AsyncIdempotentConsumer` is the same for asyncio.

A message that fails is retried with backoff while its key is claimed. After the last attempt, or after a permanent
error, the dead-letter hook gets the message. The store remembers this, so the message is recognised if it is delivered
again. Without a hook, the message returns to the queue, and its key is released. A message returns to the queue without
becoming a dead letter if the time ends before the last attempt, if another worker is processing it, or if the store is
unavailable.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.defaults import DEFAULT_LEASE, DEFAULT_ORDER_TTL, DEFAULT_TTL
from grantwire_idempotency.duplicates import by_message_id
from grantwire_idempotency.errors import (
    BadRequestError,
    DeadLetteredError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.events import BatchItem, parse_event, parse_sqs_records
from grantwire_idempotency.execution import (
    LEASE_MARGIN,
    Execution,
    ExecutionSettings,
    HandledFailureError,
    Outcome,
    call_once,
    describe,
    remaining_time,
    to_key,
)
from grantwire_idempotency.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency.logs import logger as default_logger
from grantwire_idempotency.messages import Message
from grantwire_idempotency.retries import RetryLoop, RetryPolicy
from grantwire_idempotency.serializers import JsonSerializer
from grantwire_idempotency.steps import drive, drive_async
from grantwire_idempotency.stores.interface import Key
from grantwire_idempotency.wiring import (
    async_store_rule,
    callable_rule,
    duration_rule,
    fail_mode_rule,
    function_rule,
    job_name,
    job_rules,
    logger_rule,
    metrics_rule,
    require,
    serializer_rule,
    sync_store_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grantwire_idempotency.logs import LibraryLogger
    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.serializers import Serializer
    from grantwire_idempotency.steps import Steps
    from grantwire_idempotency.stores.interface import AsyncStore, Claim, Store

    PartialResponse = dict[str, list[dict[str, str]]]

_BY_MESSAGE_ID = by_message_id()
_RETRY = RetryPolicy()
_JSON = JsonSerializer()
# No message and no attempt starts with less than this remaining of the Lambda function's time.
_TIME_RESERVE = timedelta(seconds=1)
# The start of the stored error of a dead letter, before the id of the message.
_DEAD_LETTER = "dead letter "


class _Consumer:
    """The engine of both consumers: all methods are steps without I/O (see `steps`)."""

    def __init__(  # noqa: PLR0913 - each parameter is one decision of the caller
        self,
        storage: Store | AsyncStore,
        processor: Callable[[Message], Any],
        metrics: IdempotencyMetrics | None = None,
        *,
        identify: Callable[..., Key | str | None] = _BY_MESSAGE_ID,
        items: Callable[[Message], Iterable[tuple[str, Any]]] | None = None,
        ttl: timedelta = DEFAULT_TTL,
        lease: timedelta = DEFAULT_LEASE,
        order_ttl: timedelta = DEFAULT_ORDER_TTL,
        fail_mode: FailMode | None = None,
        retry: RetryPolicy = _RETRY,
        dead_letter: Callable[[Message, Exception], Any] | None = None,
        name: str | None = None,
        serializer: Serializer = _JSON,
        logger: LibraryLogger | None = None,
        sleep: Callable[[float], Any] | None = None,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stored_name = job_name(processor, name)
        chosen_mode = choose_fail_mode(storage, fail_mode, FailMode.CLOSED)
        require(
            async_store_rule(storage) if self._is_async else sync_store_rule(storage),
            metrics_rule(metrics),
            callable_rule("identify", identify),
            (True, "") if items is None else function_rule("items", items),
            duration_rule("ttl", ttl),
            duration_rule("lease", lease),
            duration_rule("order_ttl", order_ttl),
            fail_mode_rule(chosen_mode),
            (isinstance(retry, RetryPolicy), "retry must be a RetryPolicy"),
            (True, "") if dead_letter is None else function_rule("dead_letter", dead_letter, is_async=self._is_async),
            serializer_rule(serializer),
            logger_rule(logger),
            *job_rules("processor", processor, stored_name, is_async=self._is_async),
        )
        self._processor = processor
        self._identify = identify
        self._items = items
        self._lease = lease
        self._retry = retry
        self._dead_letter = dead_letter
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._sleep: Callable[[float], Any] = sleep or (asyncio.sleep if self._is_async else time.sleep)
        self._rand, self._clock = rand, clock
        settings = ExecutionSettings(stored_name, ttl, chosen_mode, order_ttl, metrics, serializer, logger)
        self._execution = Execution(storage, settings, sleep=self._sleep)

    _is_async = False

    def _run_message(self, message: Message, lease: timedelta | None, *, redrive: bool) -> Steps[Outcome]:
        lease = self._lease if lease is None else lease
        require(duration_rule("lease", lease))
        try:
            return (yield from self._process(message, lease, lease, redrive=redrive))
        finally:
            self._execution.flush()

    def _run_record(self, record: Any, context: object) -> Steps[Any]:
        message = Message.from_sqs(record)
        try:
            outcome = yield from self._process_in_time(message, context)
        finally:
            self._execution.flush()
        return outcome.value

    def _run_event(self, event: Any, context: object) -> Steps[PartialResponse]:
        parsed = parse_event(event)
        failed = yield from self._run_batch(parsed.items, context)
        if failed and not parsed.is_partial:
            raise RetryableError(f"{len(failed)} of {len(parsed.items)} messages must be delivered again")
        return _partial_response(failed)

    def _run_batch(self, items: Sequence[BatchItem], context: object) -> Steps[list[str]]:
        logger = self._logger
        failed: list[str] = []
        blocked_groups: set[str] = set()
        try:
            for position, item in enumerate(items):
                remaining = remaining_time(context)
                if remaining is not None and remaining < _TIME_RESERVE:
                    logger.warning(
                        "out of time, remaining messages returned to queue", extra={"left": len(items) - position}
                    )
                    return failed + [unprocessed.id for unprocessed in items[position:]]
                if item.group in blocked_groups or not (yield from self._try_process(item, context)):
                    failed.append(item.id)
                    blocked_groups |= {item.group} if item.group is not None else set()
        finally:
            self._execution.flush()
        return failed

    def _try_process(self, item: BatchItem, context: object) -> Steps[bool]:
        if item.message is None:
            logger = self._logger
            logger.error("invalid record", extra={"message_id": item.id})
            return False
        try:
            yield from self._process_in_time(item.message, context)
        except Exception:  # noqa: BLE001 - already logged; it must not affect the next message
            return False
        return True

    def _process_in_time(self, message: Message, context: object) -> Steps[Outcome]:
        remaining = remaining_time(context)
        if remaining is None:
            return (yield from self._process(message, self._lease, self._lease))
        return (yield from self._process(message, remaining + LEASE_MARGIN, remaining - _TIME_RESERVE))

    def _process(
        self, message: Message, lease: timedelta, retry_time: timedelta, *, redrive: bool = False
    ) -> Steps[Outcome]:
        """Process a message, or each of its items under the key `message:item`."""
        retries = self._new_retries(retry_time)
        try:
            key = self._make_key(message)
            items = None if self._items is None else _read_items(self._items(message))
        except Exception as error:  # noqa: BLE001 - a retry of the same message would fail in the same way
            return (yield from self._fail(message, error, retries))
        if items is None:
            return (yield from self._process_one(message, key, lease, retries, redrive=redrive))
        values: list[Any] = []
        replayed = True
        deadline = self._clock() + lease.total_seconds()
        for identifier, payload in items.items():
            item = replace(message, id=f"{message.id}:{identifier}", body=payload)
            item_key = replace(key, value=f"{key.value}:{identifier}", message_id=item.id)
            time_left = timedelta(seconds=max(deadline - self._clock(), LEASE_MARGIN.total_seconds()))
            item_retries = RetryLoop(self._retry, retries.deadline, self._clock, self._sleep, self._rand, self._logger)
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
            return (yield from self._execution.run(key, lease, lambda: self._attempt(message, retries), recognise))
        except HandledFailureError:
            return Outcome(dead_letter=retries.error)
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
        call = lambda: call_once(lambda: self._processor(message), is_async=self._is_async)  # noqa: E731 - the work
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
        logger = self._logger
        logger.info("message is already a dead letter, skipped", extra=self._log_fields(message))
        return Outcome(replayed=True, dead_letter=DeadLetteredError(claim.last_error.removeprefix(start)))

    def _new_retries(self, retry_time: timedelta) -> RetryLoop:
        deadline = self._clock() + retry_time.total_seconds()
        return RetryLoop(self._retry, deadline, self._clock, self._sleep, self._rand, self._logger)

    def _make_key(self, message: Message) -> Key:
        key = to_key(self._identify(message)) or Key(message.id)
        return replace(key, message_id=key.message_id or message.id)

    def _log_return_to_queue(self, message: Message, error: Exception, retries: RetryLoop) -> None:
        logger, fields = self._logger, self._log_fields(message)
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
        logger, fields, hook = self._logger, self._log_fields(message), self._dead_letter
        logger.error("message failed", exc_info=error, extra={**fields, "attempts": retries.attempts})
        if hook is None:
            raise error
        try:
            yield lambda: hook(message, error)
        except Exception:
            logger.exception("dead-letter hook failed, message returned to queue", extra=fields)
        else:
            return Outcome(dead_letter=error)
        raise error

    def _log_fields(self, message: Message) -> dict[str, Any]:
        """Return the fields of every log line about a message."""
        return {"message_id": message.id, "task_type": self._execution.name}


class IdempotentConsumer(_Consumer):
    """Processes each message once, as far as the store can guarantee it, and reports which messages to redeliver.

    `processor(message)` does the work. Its return value is stored and returned for duplicates. `identify` returns the
    key of a message; if it returns none, the message id is the key. With `items`, which returns pairs of an id and a
    JSON value, the processor gets a message for each item, and each item is remembered as `message:item`. The `name` of
    the consumer is part of every stored key and has the same default as in `@idempotent`. While the store is
    unavailable, CLOSED (the default, unless the store has a fail mode) leaves messages in the queue, and OPEN processes
    them unguarded.

    A claim lasts until the time of the Lambda function ends, or for `lease` without a context. Results are kept for
    `ttl`, and the version or time of an entity for `order_ttl`.

    `dead_letter(message, error)` is called after the last attempt has failed. If the hook returns, the message is
    handled, and recognised when it is delivered again. If the hook raises, the message returns to the queue.

    Raises ConfigError with every missing or invalid argument.
    """

    def process(self, message: Message, lease: timedelta | None = None, *, redrive: bool = False) -> Outcome:
        """Process one message within `lease`; return the stored result for a duplicate.

        With `redrive`, or with an attribute `redrive`, a message that is a dead letter is processed again. Raises the
        processor's error if no dead-letter hook took the message, RequestInProgressError if another worker has it, and
        the store's RetryableError if the store is unavailable. Redeliver the message after any of these errors.
        """
        return drive(self._run_message(message, lease, redrive=redrive))

    def process_batch(self, messages: Iterable[Message], context: object = None) -> list[str]:
        """Process messages one by one and return the ids of those to redeliver.

        A message that fails does not cause the others to run again. After a failure, the later messages of the same
        group are not processed. No message starts when the time of the Lambda function, according to `context`, is
        about to end.
        """
        return drive(self._run_batch([BatchItem.from_message(message) for message in messages], context))

    def process_record(self, record: Any, lambda_context: object = None) -> Any:
        """Process one SQS record and return its result. Use it as `record_handler` of Powertools' batch processors."""
        return drive(self._run_record(record, lambda_context))

    def handle(self, event: Any, context: object = None) -> PartialResponse:
        """Process an event of SQS, SNS, EventBridge or Kafka; a body from SNS or EventBridge in SQS is unwrapped.

        For SQS it returns Lambda's partial batch response, as `handle_sqs` does. For the others it raises
        RetryableError if a message must be delivered again; the completed ones are duplicates then. Raises
        BadRequestError for an event of an unknown kind.
        """
        return drive(self._run_event(event, context))

    def handle_sqs(self, event: Mapping[str, Any], context: object = None) -> PartialResponse:
        """Process an SQS event and return Lambda's partial batch response. Bodies are not unwrapped.

        The event source requires `FunctionResponseTypes: [ReportBatchItemFailures]`. An invalid record fails alone. If
        even its id is invalid, Lambda treats the response as a failure of the whole batch; the completed messages are
        duplicates at the redelivery. Raises BadRequestError if the event is not from SQS.
        """
        return _partial_response(drive(self._run_batch(parse_sqs_records(event), context)))


class AsyncIdempotentConsumer(_Consumer):
    """An `IdempotentConsumer` for asyncio: store, processor and dead-letter hook are asynchronous."""

    _is_async = True

    async def process(self, message: Message, lease: timedelta | None = None, *, redrive: bool = False) -> Outcome:
        """See `IdempotentConsumer`."""
        return await drive_async(self._run_message(message, lease, redrive=redrive))

    async def process_batch(self, messages: Iterable[Message], context: object = None) -> list[str]:
        """See `IdempotentConsumer`."""
        return await drive_async(self._run_batch([BatchItem.from_message(message) for message in messages], context))

    async def handle(self, event: Any, context: object = None) -> PartialResponse:
        """See `IdempotentConsumer`."""
        return await drive_async(self._run_event(event, context))

    async def handle_sqs(self, event: Mapping[str, Any], context: object = None) -> PartialResponse:
        """See `IdempotentConsumer`."""
        return _partial_response(await drive_async(self._run_batch(parse_sqs_records(event), context)))


def _partial_response(failed: Sequence[str]) -> PartialResponse:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}


def _read_items(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Return the JSON of each item by its id. Raises BadRequestError for an invalid or repeated id."""
    items: dict[str, str] = {}
    for identifier, payload in pairs:
        if not isinstance(identifier, str) or not identifier or identifier in items:
            raise BadRequestError("each item of a message must have its own id, a non-empty string")
        items[identifier] = json.dumps(payload)
    return items
