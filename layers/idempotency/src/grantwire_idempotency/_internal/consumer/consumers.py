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
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.consumer.events import BatchItem, parse_event, parse_sqs_records
from grantwire_idempotency._internal.consumer.message_processing import MessageProcessing
from grantwire_idempotency._internal.consumer.retries import RetryPolicy
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE, DEFAULT_ORDER_TTL, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.wiring import (
    async_store_rule,
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
from grantwire_idempotency._internal.keys.duplicates import by_message_id
from grantwire_idempotency._internal.keys.messages import Message
from grantwire_idempotency.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.foundation.steps import Steps
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.stores.interface import AsyncStore, Key, Store

    PartialResponse = dict[str, list[dict[str, str]]]

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
            function_rule("identify", identify),
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
            return (yield from self._processing.process(message, self._lease, self._lease))
        return (yield from self._processing.process(message, remaining + LEASE_MARGIN, remaining - _TIME_RESERVE))


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
