"""What both consumers do: wire their parts, read events, go through a batch, and report which messages to redeliver.

All methods are steps without I/O; see `steps`. `message_processing` processes one message.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.consumer.events import BatchItem, parse_event
from grantwire_idempotency._internal.consumer.message_processing import MessageProcessing
from grantwire_idempotency._internal.consumer.retries import RetryPolicy
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE, DEFAULT_ORDER_TTL, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
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
from grantwire_idempotency._internal.keys.arguments import ONLY_OF_JOBS, ArgumentStrategy
from grantwire_idempotency._internal.keys.duplicates import by_message_id
from grantwire_idempotency._internal.keys.messages import Message, require_message
from grantwire_idempotency.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


class ConsumerEngine:
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
        return partial_response(failed)

    def _run_batch(self, items: Sequence[BatchItem], context: object) -> Steps[list[str]]:
        failed: list[str] = []
        blocked_groups: set[str] = set()
        try:
            for position, item in enumerate(items):
                if is_out_of_time(context):
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


def is_out_of_time(context: object) -> bool:
    """Return whether the time of the Lambda function is too short for another message."""
    remaining = remaining_time(context)
    return remaining is not None and remaining < _TIME_RESERVE


def partial_response(failed: Sequence[str]) -> PartialResponse:
    """Return Lambda's response for the ids of the messages to redeliver."""
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}
