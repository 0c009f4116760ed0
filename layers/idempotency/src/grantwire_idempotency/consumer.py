"""`IdempotentConsumer`: each message of a queue or stream has its effect once, however often it is delivered (C8, C12).

    consumer = IdempotentConsumer(store, process, name="orders")
    handler = consumer.handle_sqs                                     # a Lambda behind SQS
    consumer.process(message)                                         # anything else

A message that fails is tried again, after growing pauses, while its key is claimed. After the last attempt, or a
permanent error, it goes to the dead-letter hook if there is one, else back to the queue. Either way its key is free, so
that a redelivery or a redrive runs it again. A message goes back to the queue, and is no dead letter, if the time ended
before the attempts did, if somebody else is at it, or if the store is out of reach.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.duplicates import by_message_id
from grantwire_idempotency.errors import BadRequestError, RejectedError, RequestInProgressError, RetryableError
from grantwire_idempotency.execution import AFTER_TIMEOUT, Execution, Outcome, key_from, remaining_time
from grantwire_idempotency.fail_mode import FailMode
from grantwire_idempotency.logs import logger
from grantwire_idempotency.messages import Delivery, Message
from grantwire_idempotency.retries import Attempts, Retry
from grantwire_idempotency.stores.interface import Key
from grantwire_idempotency.wiring import (
    callable_rule,
    fail_mode_rule,
    job_rules,
    length_rule,
    metrics_rule,
    name_of,
    require,
    store_rule,
    work_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grantwire_idempotency.metrics import IdempotencyMetrics
    from grantwire_idempotency.stores.interface import Store

_BY_MESSAGE_ID = by_message_id()
_RETRY = Retry()
_LEASE = timedelta(minutes=15)
# With less than this left of the Lambda's time no further message, and no further attempt, is begun.
_RESERVE = timedelta(seconds=1)


class IdempotentConsumer:
    """Processes each message once, as far as the store can tell, and says which ones the queue has to deliver again.

    `processor(message)` does the work; what it returns is kept, as JSON, and handed out for duplicates. `identify` says
    what makes two messages the same; where it finds nothing the message's id counts. Keys belong to the consumer's
    `name`, which is made like that of `@idempotent` unless it is given. While the store is down CLOSED, the default,
    leaves messages in the queue; OPEN processes them unguarded.

    `dead_letter(message, error)` is called when a message has failed for good. If it returns, the message is dealt
    with; if it raises, the message goes back to the queue. ConfigError, when it is put together, names every part that
    is missing or of the wrong kind.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the author
        self,
        storage: Store,
        processor: Callable[[Message], Any],
        metrics: IdempotencyMetrics | None = None,
        *,
        identify: Callable[..., Key | str | None] = _BY_MESSAGE_ID,
        ttl: timedelta = timedelta(hours=24),
        fail_mode: FailMode = FailMode.CLOSED,
        retry: Retry = _RETRY,
        dead_letter: Callable[[Message, Exception], object] | None = None,
        name: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stored_name = name_of(processor, name)
        require(
            store_rule(storage),
            metrics_rule(metrics),
            callable_rule("identify", identify),
            length_rule("ttl", ttl),
            fail_mode_rule(fail_mode),
            (isinstance(retry, Retry), "retry must be a Retry"),
            (True, "") if dead_letter is None else work_rule("dead_letter", dead_letter),
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
        """Process one message, within `lease`; a duplicate gets the first result.

        Raises the processor's error if it failed and no dead-letter hook took it; RequestInProgressError while somebody
        else is at it, and the store's RetryableError while that is down. After any of them: deliver it again.
        """
        require(length_rule("lease", lease))
        try:
            return self._process(message, lease, lease)
        finally:
            self._execution.flush()

    def process_batch(self, messages: Iterable[Message], context: object = None) -> list[str]:
        """Process messages one by one; the ids of those to be delivered again.

        One that fails does not make the others run again. Once one of a group has failed, the later ones of that group
        wait for it. No message is begun when the time of the Lambda with this `context` is about to end.
        """
        return self._batch([Delivery(message.id, message.group, message) for message in messages], context)

    def process_record(self, record: Any, lambda_context: object = None) -> Any:
        """Process one SQS record and return its result: the `record_handler` of Powertools' batch processors."""
        message = Message.from_sqs(record)
        try:
            return self._within(message, lambda_context).value
        finally:
            self._execution.flush()

    def handle_sqs(self, event: Mapping[str, Any], context: object = None) -> dict[str, list[dict[str, str]]]:
        """Process an SQS event; the answer is Lambda's partial batch response.

        The event source needs `FunctionResponseTypes: [ReportBatchItemFailures]`. A record that cannot be read fails
        alone; if not even its id can be read, Lambda takes the answer for the failure of the batch, and those of its
        messages that were done are duplicates next time.
        """
        records = event.get("Records") or []
        if not isinstance(records, list):
            raise BadRequestError("Records of an SQS event must be a list")
        failed = self._batch([Delivery.of_sqs(record) for record in records], context)
        return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}

    def _batch(self, deliveries: Sequence[Delivery], context: object) -> list[str]:
        failed: list[str] = []
        waiting: set[str] = set()
        try:
            for position, delivery in enumerate(deliveries):
                left = remaining_time(context)
                if left is not None and left < _RESERVE:
                    logger.warning(
                        "out of time, remaining messages returned to queue", extra={"left": len(deliveries) - position}
                    )
                    return failed + [one.id for one in deliveries[position:]]
                if delivery.group in waiting or not self._done(delivery, context):
                    failed.append(delivery.id)
                    waiting |= {delivery.group} if delivery.group is not None else set()
        finally:
            self._execution.flush()
        return failed

    def _done(self, delivery: Delivery, context: object) -> bool:
        if delivery.message is None:
            logger.error("invalid record", extra={"message_id": delivery.id})
            return False
        try:
            self._within(delivery.message, context)
        except Exception:  # noqa: BLE001 - logged where it arose; the next message must not suffer for it
            return False
        return True

    def _within(self, message: Message, context: object) -> Outcome:
        left = remaining_time(context)
        if left is None:
            return self._process(message, _LEASE, _LEASE)
        return self._process(message, left + AFTER_TIMEOUT, left - _RESERVE)

    def _process(self, message: Message, lease: timedelta, time_to_try: timedelta) -> Outcome:
        until = self._clock() + time_to_try.total_seconds()
        attempts = Attempts(self._retry, until, self._clock, self._sleep, self._rand)
        try:
            key = self._key(message)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the message, it will be so again
            return self._given_up(message, error, attempts)
        try:
            return self._execution.run(
                key, lease, lambda: attempts.run(lambda: self._processor(message), {"message_id": message.id})
            )
        except Exception as error:
            # Of the library's own errors only a refusal is the message's fault: its key is one that no store can hold.
            if attempts.final if error is attempts.error else isinstance(error, RejectedError):
                return self._given_up(message, error, attempts)
            self._log_return(message, error, attempts)
            raise

    def _key(self, message: Message) -> Key:
        found = key_from(self._identify(message)) or Key(message.id)
        return replace(found, message_id=found.message_id or message.id)

    def _log_return(self, message: Message, error: Exception, attempts: Attempts) -> None:
        """The message is not given up: its time was over, somebody else is at it, or the store failed."""
        fields = self._fields(message)
        if error is attempts.error:
            logger.warning(
                "message failed, no time left to retry", exc_info=error, extra={**fields, "attempts": attempts.made}
            )
        elif isinstance(error, RequestInProgressError):
            logger.info("message already in progress", extra=fields)
        elif isinstance(error, RetryableError):
            logger.warning(
                "idempotency store unavailable, message returned to queue", extra={**fields, "error": str(error)}
            )
        else:
            logger.error("idempotency store unavailable, message returned to queue", exc_info=error, extra=fields)

    def _given_up(self, message: Message, error: Exception, attempts: Attempts) -> Outcome:
        """The message has failed; the dead-letter hook has the last word."""
        fields = self._fields(message)
        logger.error("message failed", exc_info=error, extra={**fields, "attempts": attempts.made})
        if self._dead_letter is None:
            raise error
        try:
            self._dead_letter(message, error)
        except Exception:
            logger.exception("dead-letter hook failed, message returned to queue", extra=fields)
        else:
            return Outcome(dead_letter=error)
        raise error

    def _fields(self, message: Message) -> dict[str, Any]:
        """The fields that every log line about a message has."""
        return {"message_id": message.id, "task_type": self._execution.name}
