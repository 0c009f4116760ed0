"""`IdempotentConsumer`: each message of a queue or stream has its effect once, even if it is redelivered (C8, C12).

    consumer = IdempotentConsumer(store, process, name="orders")
    handler = consumer.handle_sqs                                     # a Lambda behind SQS
    consumer.process(message)                                         # any other source

A message that fails is retried with backoff while its key is claimed. After the last attempt, or after a permanent
error, the dead-letter hook gets the message. Without a hook, the message returns to the queue. In both cases its key is
released, so that a redelivery or a redrive runs the message again. A message returns to the queue without becoming a
dead letter if the time ends before the last attempt, if another worker is processing it, or if the store is
unavailable.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.duplicates import by_message_id
from grantwire_idempotency.errors import BadRequestError, RejectedError, RequestInProgressError, RetryableError
from grantwire_idempotency.execution import LEASE_MARGIN, Execution, Outcome, remaining_time, to_key
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import logger
from grantwire_idempotency.messages import BatchItem, Message
from grantwire_idempotency.retries import RetryLoop, RetryPolicy
from grantwire_idempotency.stores.interface import Key
from grantwire_idempotency.wiring import (
    callable_rule,
    duration_rule,
    fail_mode_rule,
    function_rule,
    job_name,
    job_rules,
    metrics_rule,
    require,
    store_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.stores.interface import Store

_BY_MESSAGE_ID = by_message_id()
_RETRY = RetryPolicy()
_LEASE = timedelta(minutes=15)
# No message and no attempt starts with less than this remaining of the Lambda function's time.
_TIME_RESERVE = timedelta(seconds=1)


class IdempotentConsumer:
    """Processes each message once, as far as the store can guarantee it, and reports which messages to redeliver.

    `processor(message)` does the work. Its return value is stored as JSON and returned for duplicates. `identify`
    returns the key of a message; if it returns none, the message id is the key. The `name` of the consumer is part of
    every stored key and has the same default as in `@idempotent`. While the store is unavailable, CLOSED (the default)
    leaves messages in the queue, and OPEN processes them unguarded.

    `dead_letter(message, error)` is called after the last attempt has failed. If the hook returns, the message is
    handled; if it raises, the message returns to the queue.

    Raises ConfigError with every missing or invalid argument.
    """

    def __init__(  # noqa: PLR0913 - each parameter is one decision of the caller
        self,
        storage: Store,
        processor: Callable[[Message], Any],
        metrics: IdempotencyMetrics | None = None,
        *,
        identify: Callable[..., Key | str | None] = _BY_MESSAGE_ID,
        ttl: timedelta = timedelta(hours=24),
        fail_mode: FailMode = FailMode.CLOSED,
        retry: RetryPolicy = _RETRY,
        dead_letter: Callable[[Message, Exception], object] | None = None,
        name: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stored_name = job_name(processor, name)
        require(
            store_rule(storage),
            metrics_rule(metrics),
            callable_rule("identify", identify),
            duration_rule("ttl", ttl),
            fail_mode_rule(fail_mode),
            (isinstance(retry, RetryPolicy), "retry must be a RetryPolicy"),
            (True, "") if dead_letter is None else function_rule("dead_letter", dead_letter),
            *job_rules("processor", processor, stored_name),
        )
        self._processor = processor
        self._identify = identify
        self._retry = retry
        self._dead_letter = dead_letter
        self._sleep, self._rand, self._clock = sleep, rand, clock
        self._execution = Execution(
            storage,
            name=stored_name,
            ttl=ttl,
            fail_mode=fail_mode,
            metrics=metrics,
            sleep=sleep,
        )

    def process(self, message: Message, lease: timedelta = _LEASE) -> Outcome:
        """Process one message within `lease`; return the stored result for a duplicate.

        Raises the processor's error if no dead-letter hook took the message, RequestInProgressError if another worker
        is processing it, and the store's RetryableError if the store is unavailable. Redeliver the message after any of
        these errors.
        """
        require(duration_rule("lease", lease))
        try:
            return self._process(message, lease, lease)
        finally:
            self._execution.flush()

    def process_batch(self, messages: Iterable[Message], context: object = None) -> list[str]:
        """Process messages one by one and return the ids of those to redeliver.

        A message that fails does not cause the others to run again. After a failure, the later messages of the same
        group are not processed. No message starts when the time of the Lambda function, according to `context`, is
        about to end.
        """
        return self._process_items([BatchItem(message.id, message.group, message) for message in messages], context)

    def process_record(self, record: Any, lambda_context: object = None) -> Any:
        """Process one SQS record and return its result. Use it as `record_handler` of Powertools' batch processors."""
        message = Message.from_sqs(record)
        try:
            return self._process_in_time(message, lambda_context).value
        finally:
            self._execution.flush()

    def handle_sqs(self, event: Mapping[str, Any], context: object = None) -> dict[str, list[dict[str, str]]]:
        """Process an SQS event and return Lambda's partial batch response.

        The event source requires `FunctionResponseTypes: [ReportBatchItemFailures]`. An invalid record fails alone. If
        even its id is invalid, Lambda treats the response as a failure of the whole batch; the completed messages are
        duplicates at the redelivery.
        """
        records = event.get("Records") or []
        if not isinstance(records, list):
            raise BadRequestError("Records of an SQS event must be a list")
        failed = self._process_items([BatchItem.from_sqs_record(record) for record in records], context)
        return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}

    def _process_items(self, items: Sequence[BatchItem], context: object) -> list[str]:
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
                if item.group in blocked_groups or not self._try_process(item, context):
                    failed.append(item.id)
                    blocked_groups |= {item.group} if item.group is not None else set()
        finally:
            self._execution.flush()
        return failed

    def _try_process(self, item: BatchItem, context: object) -> bool:
        if item.message is None:
            logger.error("invalid record", extra={"message_id": item.id})
            return False
        try:
            self._process_in_time(item.message, context)
        except Exception:  # noqa: BLE001 - already logged; it must not affect the next message
            return False
        return True

    def _process_in_time(self, message: Message, context: object) -> Outcome:
        remaining = remaining_time(context)
        if remaining is None:
            return self._process(message, _LEASE, _LEASE)
        return self._process(message, remaining + LEASE_MARGIN, remaining - _TIME_RESERVE)

    def _process(self, message: Message, lease: timedelta, retry_time: timedelta) -> Outcome:
        deadline = self._clock() + retry_time.total_seconds()
        retries = RetryLoop(self._retry, deadline, self._clock, self._sleep, self._rand)
        try:
            key = self._make_key(message)
        except Exception as error:  # noqa: BLE001 - a retry of the same message would fail in the same way
            return self._handle_failure(message, error, retries)
        try:
            return self._execution.run(
                key, lease, lambda: retries.run(lambda: self._processor(message), {"message_id": message.id})
            )
        except Exception as error:
            # If the library itself rejects the message, no store can hold its key. Any other error of the library is
            # not caused by the message.
            if retries.is_final if error is retries.error else isinstance(error, RejectedError):
                return self._handle_failure(message, error, retries)
            self._log_return_to_queue(message, error, retries)
            raise

    def _make_key(self, message: Message) -> Key:
        key = to_key(self._identify(message)) or Key(message.id)
        return replace(key, message_id=key.message_id or message.id)

    def _log_return_to_queue(self, message: Message, error: Exception, retries: RetryLoop) -> None:
        fields = self._log_fields(message)
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

    def _handle_failure(self, message: Message, error: Exception, retries: RetryLoop) -> Outcome:
        """Pass a failed message to the dead-letter hook; raise its error if there is no hook or the hook fails."""
        fields = self._log_fields(message)
        logger.error("message failed", exc_info=error, extra={**fields, "attempts": retries.attempts})
        if self._dead_letter is None:
            raise error
        try:
            self._dead_letter(message, error)
        except Exception:
            logger.exception("dead-letter hook failed, message returned to queue", extra=fields)
        else:
            return Outcome(dead_letter=error)
        raise error

    def _log_fields(self, message: Message) -> dict[str, Any]:
        """Return the fields of every log line about a message."""
        return {"message_id": message.id, "task_type": self._execution.name}
