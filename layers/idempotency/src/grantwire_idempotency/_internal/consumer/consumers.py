"""`IdempotentConsumer`: each message has its effect once, even if it is redelivered (C8, C12, C21).

    consumer = IdempotentConsumer(store, process, name="orders")
    handler = consumer.handle                                         # a Lambda behind SQS, SNS, EventBridge or Kafka
    consumer.process(message)                                         # any other source

`AsyncIdempotentConsumer` is the same for asyncio.

`engine` has what both do. A message returns to the queue without becoming a dead letter if the time ends before the
last attempt, if another worker is processing it, or if the store is unavailable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from grantwire_idempotency._internal.consumer.concurrent_batches import process_concurrently
from grantwire_idempotency._internal.consumer.engine import ConsumerEngine, is_out_of_time, partial_response
from grantwire_idempotency._internal.consumer.events import BatchItem, parse_sqs_records
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.type_parameters import Payload, Value
from grantwire_idempotency._internal.foundation.wiring import (
    count_rule,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from datetime import timedelta

    from grantwire_idempotency._internal.consumer.engine import PartialResponse
    from grantwire_idempotency._internal.consumer.options import AsyncConsumerOptions, ConsumerOptions
    from grantwire_idempotency._internal.jobs.execution import Outcome
    from grantwire_idempotency._internal.keys.messages import Message
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.stores.interface import AsyncStore, Store

    Items = Callable[[Message[Any]], Iterable[tuple[str, Any]]]


class IdempotentConsumer(ConsumerEngine, Generic[Payload, Value]):
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
        return partial_response(drive(self._run_batch(parse_sqs_records(event), context)))


class AsyncIdempotentConsumer(ConsumerEngine, Generic[Payload, Value]):
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
            if is_out_of_time(context):
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
        return partial_response(await drive_async(self._run_batch(parse_sqs_records(event), context)))
