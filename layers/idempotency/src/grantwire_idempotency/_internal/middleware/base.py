"""What both kinds of middleware have in common: their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.fail_mode import FailMode, choose_fail_mode
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import (
    callable_rule,
    duration_rule,
    fail_mode_rule,
    logger_rule,
    metrics_rule,
    name_rule,
    require,
)
from grantwire_idempotency._internal.jobs.execution import Execution
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency._internal.middleware.core import RequestGuard
from grantwire_idempotency._internal.middleware.problems import Problems
from grantwire_idempotency._internal.middleware.settings import (
    DEFAULT_HEADERS,
    DEFAULT_MAX_BYTES,
    DEFAULT_METHODS,
    DEFAULT_STATUSES,
    MiddlewareSettings,
    documentation_rule,
    flag_rule,
    headers_rule,
    methods_rule,
    path_test,
    paths_rule,
    size_rule,
    statuses_rule,
)
from grantwire_idempotency._internal.middleware.stored_responses import ResponseSerializer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.wiring import Rule
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics
    from grantwire_idempotency._internal.middleware.settings import Paths

Application = TypeVar("Application")
KeyStore = TypeVar("KeyStore")
FindCaller = TypeVar("FindCaller")


class Middleware(Generic[Application, KeyStore, FindCaller]):
    """Guards the requests of an application. A subclass reads requests and sends responses."""

    _store_rule: ClassVar[Callable[..., Rule]]

    def __init__(  # noqa: PLR0913 - each parameter is one decision of the application
        self,
        app: Application,
        store: KeyStore,
        *,
        name: str,
        caller: FindCaller,
        methods: Collection[str] = DEFAULT_METHODS,
        paths: Paths | None = None,
        required: bool = True,
        ttl: timedelta = DEFAULT_TTL,
        lease: timedelta = DEFAULT_LEASE,
        fail_mode: FailMode | None = None,
        stored_statuses: Collection[int] = DEFAULT_STATUSES,
        stored_headers: Collection[str] = (),
        max_request_bytes: int = DEFAULT_MAX_BYTES,
        max_response_bytes: int = DEFAULT_MAX_BYTES,
        documentation: str | None = None,
        metrics: IdempotencyMetrics | None = None,
        logger: LibraryLogger | None = None,
    ) -> None:
        mode = choose_fail_mode(store, fail_mode, FailMode.CLOSED)
        require(
            callable_rule("app", app),
            self._store_rule(store),
            name_rule(name),
            callable_rule("caller", caller),
            methods_rule(methods),
            paths_rule(paths),
            flag_rule("required", required),
            duration_rule("ttl", ttl),
            duration_rule("lease", lease),
            fail_mode_rule(mode),
            statuses_rule(stored_statuses),
            headers_rule(stored_headers),
            size_rule("max_request_bytes", max_request_bytes),
            size_rule("max_response_bytes", max_response_bytes),
            documentation_rule(documentation),
            metrics_rule(metrics),
            logger_rule(logger),
        )
        serializer = ResponseSerializer({*DEFAULT_HEADERS, *stored_headers})
        execution_settings = ExecutionSettings(name, ttl, mode, metrics=metrics, serializer=serializer, logger=logger)
        settings = MiddlewareSettings(
            frozenset(methods), path_test(paths), required, lease, frozenset(stored_statuses), max_request_bytes
        )
        store_for_engine: Any = store
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._guard = RequestGuard(
            Execution(store_for_engine, execution_settings), settings, Problems(documentation), self._logger
        )
        self._app = app
        self._find_caller = caller
        self._max_response_bytes = max_response_bytes
