"""The library's face: every name is there, says what it guarantees, and loads only what it needs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import grantwire.idempotency as library
from tests.support.paths import LAYER
from tests.unit.test_imports import modules_after_importing

SERVERS = {"redis", "psycopg", "nats", "boto3", "botocore.session"}
PARTS = {"cachetools", "rbloom"}
JOB = "from grantwire.idempotency import idempotent, IdempotentConsumer, business_key, by_version, Retry, Compensation"


def loaded_by(program: str) -> set[str]:
    """Every module that is loaded after these imports."""
    return modules_after_importing(f"sys; {program}", [LAYER])


@pytest.mark.parametrize("name", library.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """`from grantwire.idempotency import name` works, and help() says something of its own."""
    found = getattr(library, name)
    assert name in dir(library)
    if not inspect.isclass(found) and not inspect.isfunction(found):
        return
    assert found.__module__.startswith("grantwire.idempotency")
    undocumented = [path for path, member in members(name, found) if not (member.__doc__ or "").strip()]
    assert undocumented == []


def members(name: str, found: Any) -> list[tuple[str, Any]]:
    """A class or function, and the public methods and properties that the class itself defines."""
    if not inspect.isclass(found):
        return [(name, found)]
    own = {member: value for member, value in vars(found).items() if not member.startswith("_")}
    documented = (property, classmethod, staticmethod)
    return [
        (name, found),
        *((f"{name}.{member}", value) for member, value in own.items() if inspect.isroutine(value)),
        *((f"{name}.{member}", value) for member, value in own.items() if isinstance(value, documented)),
    ]


def test_a_class_s_generated_docstring_does_not_count() -> None:
    """A dataclass without one documents itself by its signature: that is none."""
    classes = [getattr(library, name) for name in library.__all__ if inspect.isclass(getattr(library, name))]
    assert [one.__name__ for one in classes if (one.__doc__ or "").startswith(f"{one.__name__}(")] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        library.nonsense  # noqa: B018


def test_the_package_alone_loads_no_client() -> None:
    """`grant` imports it for its requests."""
    assert not loaded_by("import grantwire.idempotency") & (SERVERS | PARTS)


@pytest.mark.parametrize(
    ("store", "needs"),
    [
        ("MemoryStore", {"cachetools"}),
        ("RedisStore", {"redis"}),
        ("PostgresStore; from grantwire.database import Database", {"psycopg"}),
    ],
    ids=["memory", "redis", "postgres"],
)
def test_a_job_loads_its_own_store_alone(store: str, needs: set[str]) -> None:
    """A job that keeps its keys in Redis loads neither psycopg nor nats nor boto3, and so on."""
    loaded = loaded_by(f"{JOB}, {store}")
    assert needs <= loaded
    assert not loaded & ((SERVERS | PARTS) - needs)
