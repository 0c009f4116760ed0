"""Programs with transactions of their own: on psycopg, SQLAlchemy and Django, which hand them to the library (C28)."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import django
import psycopg
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

KINDS = ("psycopg", "psycopg-autocommit", "sqlalchemy", "session", "django")


@dataclass(frozen=True, slots=True)
class Caller:
    """A program with a connection. `connection` is what it gives to the library."""

    connection: Any
    begin: Callable[[], AbstractContextManager[Any]]
    savepoint: Callable[[], AbstractContextManager[Any]]
    execute: Callable[[str], Any]


class Undo(Exception):  # noqa: N818 - not an error of the library
    """Rolls a block back."""


@contextmanager
def undone(block: Any) -> Iterator[None]:
    """Roll a transaction or a savepoint back at its end."""
    with suppress(Undo), block:
        yield
        raise Undo


@contextmanager
def open_caller(kind: str, url: str, isolation: str = "READ COMMITTED") -> Iterator[Caller]:
    """Open a program of that kind."""
    opened = {
        "psycopg": _open_psycopg,
        "psycopg-autocommit": _open_psycopg_autocommit,
        "sqlalchemy": _open_sqlalchemy,
        "session": _open_session,
        "django": _open_django,
    }[kind]
    with opened(url) as caller:
        if isolation != "READ COMMITTED":
            with caller.begin():
                caller.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        yield caller


@contextmanager
def _open_psycopg(url: str) -> Iterator[Caller]:
    """Open a connection as psycopg opens it: its first statement begins a transaction, and its block commits."""
    with closing(psycopg.connect(url)) as connection:

        @contextmanager
        def begin() -> Iterator[None]:
            try:
                yield
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

        yield Caller(connection, begin, connection.transaction, connection.execute)


@contextmanager
def _open_psycopg_autocommit(url: str) -> Iterator[Caller]:
    with psycopg.connect(url, autocommit=True) as connection:
        begin = connection.transaction
        yield Caller(connection, begin, begin, connection.execute)


def sqlalchemy_url(url: str) -> str:
    """Return the address for SQLAlchemy with psycopg 3."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def open_engine(url: str, **options: Any) -> Iterator[Engine]:
    """Open an engine of SQLAlchemy."""
    engine = create_engine(sqlalchemy_url(url), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _open_sqlalchemy(url: str) -> Iterator[Caller]:
    with open_engine(url) as engine, engine.connect() as connection:
        yield Caller(connection, connection.begin, connection.begin_nested, connection.exec_driver_sql)


@contextmanager
def _open_session(url: str) -> Iterator[Caller]:
    with open_engine(url) as engine, Session(engine) as session:
        yield Caller(session, session.begin, session.begin_nested, lambda sql: session.execute(text(sql)))


@contextmanager
def _open_django(url: str) -> Iterator[Caller]:
    with django_alias(url) as alias:
        connection = connections[alias]

        def execute(sql: str) -> Any:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return None if cursor.description is None else cursor.fetchall()

        def begin() -> AbstractContextManager[Any]:
            atomic: AbstractContextManager[Any] = transaction.atomic(using=alias)
            return atomic

        yield Caller(connection, begin, begin, execute)


@contextmanager
def django_alias(url: str, **options: Any) -> Iterator[str]:
    """Configure a database of Django for this address, and return its alias."""
    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    parts, alias = urlsplit(url), uuid.uuid4().hex
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "OPTIONS": dict(parse_qsl(parts.query)),
        **options,
    }
    connections.settings |= connections.configure_settings({"default": {}, alias: database})
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
