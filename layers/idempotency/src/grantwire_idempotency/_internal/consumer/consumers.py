"""`IdempotentConsumer`: each message has its effect once, even if it is redelivered (C8, C12, C21).

    consumer = IdempotentConsumer(store, process, name="orders")
    handler = consumer.handle                                         # a Lambda behind SQS, SNS, EventBridge or Kafka
    consumer.process(message)                                         # any other source

`AsyncIdempotentConsumer` is the same for asyncio.

This module reads events, goes through batches and reports which messages to redeliver. `message_processing` processes
one message. A message returns to the queue without becoming a dead letter if the time ends before the last attempt, if
another worker is processing it, or if the store is unavailable.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from grantwire_idempotency._internal.consumer.concurrent_batches import process_concurrently
from grantwire_idempotency._internal.consumer.events import BatchItem, parse_event, parse_sqs_records
from grantwire_idempotency._internal.consumer.message_processing import MessageProcessing
from grantwire_idempotency._internal.consumer.retries import RetryPolicy
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE, DEFAULT_ORDER_TTL, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.type_parameters import Payload, Value
from grantwire_idempotency._internal.foundation.wiring import (
    async_store_rule,
    count_rule,
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
from grantwire_idempotency._internal.jobs.execution import Execution, Outcome
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency._internal.jobs.work import LEASE_MARGIN, remaining_time
from grantwire_idempotency._internal.keys.arguments import ONLY_OF_JOBS, ArgumentStrategy
from grantwire_idempotency._internal.keys.duplicates import by_message_id
from grantwire_idempotency._internal.keys.messages import Message, require_message
from grantwire_idempotency.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from grantwire_idempotency._internal.consumer.options import AsyncConsumerOptions, ConsumerOptions
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.foundation.steps import Steps
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.stores.interface import AsyncStore, Key, Store

    PartialResponse = dict[str, list[dict[str, str]]]
    Items = Callable[[Message[Any]], Iterable[tuple[str, Any]]]

_BY_MESSAGE_ID = by_message_id()
_RETRY = RetryPolicy()
_JSON = JsonSerializer()
# No message and no attempt starts with less than this remaining of the Lambda function's time.
_TIME_RESERVE = timedelta(seconds=1)


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
            (False, ONLY_OF_JOBS) if isinstance(identify, ArgumentStrategy) else function_rule("identify", identify),
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
        self._lease = lease
        self._logger: LibraryLogger = default_logger if logger is None else logger
        sleep = sleep or (asyncio.sleep if self._is_async else time.sleep)
        settings = ExecutionSettings(stored_name, ttl, chosen_mode, order_ttl, metrics, serializer, logger)
        self._execution = Execution(storage, settings, sleep=sleep, clock=clock)
        self._processing = MessageProcessing(
            self._execution,
            processor,
            identify,
            items,
            retry,
            dead_letter,
            self._is_async,
            self._logger,
            sleep,
            rand,
            clock,
        )

    _is_async = False

    def _run_message(self, message: Message, lease: timedelta | None, *, redrive: bool) -> Steps[Outcome]:
        require_message(message)
        lease = self._lease if lease is None else lease
        require(duration_rule("lease", lease))
        try:
            return (yield from self._processing.process(message, lease, lease, redrive=redrive))
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
        failed: list[str] = []
        blocked_groups: set[str] = set()
        try:
            for position, item in enumerate(items):
                if _is_out_of_time(context):
                    self._log_out_of_time(len(items) - position)
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
            return (yield from self._processing.process(message, self._lease, self._lease))
        return (yield from self._processing.process(message, remaining + LEASE_MARGIN, remaining - _TIME_RESERVE))

    def _log_out_of_time(self, left: int) -> None:
        logger = self._logger
        logger.warning("out of time, remaining messages returned to queue", extra={"left": left})

    def _names(self, item: BatchItem) -> set[str]:
        """Return the names of what a message of a batch belongs to: its key and its group."""
        names = set() if item.group is None else {f"group {item.group}"}
        if item.message is not None:
            with suppress(Exception):  # the message fails with this error when it is processed
                names.add(f"key {self._processing.make_key(item.message).value}")
        return names


class IdempotentConsumer(_Consumer, Generic[Payload, Value]):
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

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: IdempotentConsumer[Payload, Value],
            storage: Store,
            processor: Callable[[Message[Payload]], Value],
            metrics: IdempotencyMetrics | None = None,
            *,
            items: None = None,
            **options: Unpack[ConsumerOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: IdempotentConsumer[Any, list[Any]],
            storage: Store,
            processor: Callable[[Message[Any]], Any],
            metrics: IdempotencyMetrics | None = None,
            *,
            items: Items,
            **options: Unpack[ConsumerOptions],
        ) -> None: ...
        def __init__(self, *_args: Any, **_options: Any) -> None: ...

    def process(
        self, message: Message[Payload], lease: timedelta | None = None, *, redrive: bool = False
    ) -> Outcome[Value]:
        """Process one message within `lease`; return the stored result for a duplicate.

        With `redrive`, or with an attribute `redrive`, a message that is a dead letter is processed again. Raises the
        processor's error if no dead-letter hook took the message, RequestInProgressError if another worker has it, and
        the store's RetryableError if the store is unavailable. Redeliver the message after any of these errors.
        """
        return drive(self._run_message(message, lease, redrive=redrive))

    def process_batch(self, messages: Iterable[Message[Payload]], context: object = None) -> list[str]:
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


class AsyncIdempotentConsumer(_Consumer, Generic[Payload, Value]):
    """An `IdempotentConsumer` for asyncio: store, processor and dead-letter hook are asynchronous."""

    _is_async = True

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: AsyncIdempotentConsumer[Payload, Value],
            storage: AsyncStore,
            processor: Callable[[Message[Payload]], Coroutine[Any, Any, Value]],
            metrics: IdempotencyMetrics | None = None,
            *,
            items: None = None,
            **options: Unpack[AsyncConsumerOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: AsyncIdempotentConsumer[Any, list[Any]],
            storage: AsyncStore,
            processor: Callable[[Message[Any]], Coroutine[Any, Any, Any]],
            metrics: IdempotencyMetrics | None = None,
            *,
            items: Items,
            **options: Unpack[AsyncConsumerOptions],
        ) -> None: ...
        def __init__(self, *_args: Any, **_options: Any) -> None: ...

    async def process(
        self, message: Message[Payload], lease: timedelta | None = None, *, redrive: bool = False
    ) -> Outcome[Value]:
        """See `IdempotentConsumer`."""
        return await drive_async(self._run_message(message, lease, redrive=redrive))

    async def process_batch(
        self, messages: Iterable[Message[Payload]], context: object = None, *, concurrency: int = 1
    ) -> list[str]:
        """Process up to `concurrency` messages at a time and return the ids of those to redeliver, in their order.

        Messages with the same key, and those of a group, are processed one after the other, in their order. Otherwise
        see `IdempotentConsumer`. If the task is cancelled, no message starts, and every message that was started has
        released its key when the call ends.
        """
        require(count_rule("concurrency", concurrency))
        items = [BatchItem.from_message(message) for message in messages]
        if concurrency == 1:
            return await drive_async(self._run_batch(items, context))
        return await self._run_concurrently(items, context, concurrency)

    async def _run_concurrently(self, items: Sequence[BatchItem], context: object, concurrency: int) -> list[str]:
        blocked_groups: set[str | None] = set()
        not_started = 0

        async def process(position: int) -> bool:
            nonlocal not_started
            item = items[position]
            if _is_out_of_time(context):
                not_started += 1
                return False
            if item.group in blocked_groups:
                return False
            succeeded = await drive_async(self._try_process(item, context))
            if not succeeded and item.group is not None:
                blocked_groups.add(item.group)
            return succeeded

        try:
            succeeded = await process_concurrently([self._names(item) for item in items], process, concurrency)
        finally:
            self._execution.flush()
        if not_started:
            self._log_out_of_time(not_started)
        return [item.id for item, is_done in zip(items, succeeded, strict=True) if not is_done]

    async def handle(self, event: Any, context: object = None) -> PartialResponse:
        """See `IdempotentConsumer`."""
        return await drive_async(self._run_event(event, context))

    async def handle_sqs(self, event: Mapping[str, Any], context: object = None) -> PartialResponse:
        """See `IdempotentConsumer`."""
        return _partial_response(await drive_async(self._run_batch(parse_sqs_records(event), context)))


def _is_out_of_time(context: object) -> bool:
    remaining = remaining_time(context)
    return remaining is not None and remaining < _TIME_RESERVE


def _partial_response(failed: Sequence[str]) -> PartialResponse:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}
