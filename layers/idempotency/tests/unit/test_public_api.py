"""The public API: every name exists, is documented, and imports only what it packages."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from typing import Any, NamedTuple

import pytest

import grantwire_idempotency as library
from grantwire_idempotency import databases
from infra.local.commands.check import CHECKS
from tests.support.paths import LIBRARY, LIBRARY_HOME, ROOT
from tests.unit.test_imports import modules_after_importing

SERVERS = {"redis", "psycopg", "nats", "boto3", "botocore.session"}
OPTIONAL_PACKAGES = {"rbloom", "aws_lambda_powertools", "opentelemetry"}


class Extra(NamedTuple):
    """An extra of the distribution: the modules that it installs, and the public names that need them."""

    modules: tuple[str, ...]
    names: frozenset[str] = frozenset()


EXTRAS = {
    "postgres": Extra(
        ("psycopg", "psycopg_pool"),
        frozenset(
            {
                *("AsyncInboxGuard", "AsyncPostgresStore", "AsyncTransactionGuard"),
                *("InboxGuard", "PostgresLocks", "PostgresStore", "TransactionGuard"),
            }
        ),
    ),
    "redis": Extra(
        ("redis",), frozenset({"AsyncRedisStore", "RedisLocks", "RedisStore", "connect_redis", "connect_redis_async"})
    ),
    "bloom": Extra(("rbloom",)),  # BloomFilter imports it when it is created
    "powertools": Extra(("aws_lambda_powertools",), frozenset({"PowertoolsMetrics"})),
    "opentelemetry": Extra(("opentelemetry",), frozenset({"OpenTelemetryMetrics"})),
}
JOB = (
    "from grantwire_idempotency import "
    "idempotent, IdempotentConsumer, business_key, by_version, RetryPolicy, Compensation"
)


def list_loaded_modules(program: str) -> set[str]:
    """Return every module that these imports load, without the service on the path."""
    return modules_after_importing(f"sys; {program}", [LIBRARY])


@pytest.mark.parametrize("name", dir(library))
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    """Every name can be imported from the package and has its own docstring."""
    value = getattr(library, name)
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return
    assert value.__module__.startswith("grantwire_idempotency")
    undocumented = [path for path, member in list_members(name, value) if not (member.__doc__ or "").strip()]
    assert undocumented == []


def test_type_checkers_see_exactly_the_names_that_are_loaded() -> None:
    """C31: the stub and the table of the package have the same names, each from the same module."""
    imports = ast.parse((LIBRARY / "grantwire_idempotency" / "__init__.pyi").read_text()).body
    declared = {
        alias.asname: f"{statement.module}.{alias.name}"
        for statement in imports
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    loaded = {name: f"{module}.{name}" for name, module in vars(library)["_MODULE_BY_NAME"].items()}
    assert declared == loaded
    assert len(declared) == len(dir(library))


@pytest.mark.parametrize("name", databases.__all__)
def test_every_part_for_other_database_layers_is_documented(name: str) -> None:
    """C31: the module is as public as the package."""
    assert [path for path, member in list_members(name, getattr(databases, name)) if not member.__doc__] == []


def list_members(name: str, public: Any) -> list[tuple[str, Any]]:
    """Return a class or function, and the public methods and properties that the class itself defines."""
    if not inspect.isclass(public):
        return [(name, public)]
    own = {member: value for member, value in vars(public).items() if not member.startswith("_")}
    documented = (property, classmethod, staticmethod)
    return [
        (name, public),
        *((f"{name}.{member}", value) for member, value in own.items() if inspect.isroutine(value)),
        *((f"{name}.{member}", value) for member, value in own.items() if isinstance(value, documented)),
    ]


def test_generated_docstring_does_not_count() -> None:
    """The signature that a dataclass generates is not documentation."""
    classes = [getattr(library, name) for name in dir(library) if inspect.isclass(getattr(library, name))]
    assert [cls.__name__ for cls in classes if (cls.__doc__ or "").startswith(f"{cls.__name__}(")] == []


def test_unknown_name_raises_attribute_error() -> None:
    """The package behaves like any module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(library, "nonsense")  # noqa: B009 - a type checker knows that it does not exist


def test_package_imports_no_optional_package() -> None:
    """Every function imports the package for its errors."""
    loaded = list_loaded_modules("import grantwire_idempotency")
    assert {name for name in loaded if name.startswith("grantwire")} == {"grantwire_idempotency"}
    assert not loaded & (SERVERS | OPTIONAL_PACKAGES)


def test_each_extra_is_known_to_these_tests() -> None:
    """C30: a new extra needs an entry here, so that `import *` is tested without it."""
    project = tomllib.loads((LIBRARY_HOME / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == set(EXTRAS)


@pytest.mark.parametrize("missing", [(), *((extra,) for extra in EXTRAS), tuple(EXTRAS)], ids=str)
def test_import_of_all_names_needs_no_extra(missing: tuple[str, ...]) -> None:
    """C30: `import *` gets the names whose packages are installed."""
    hidden = [module for extra in missing for module in EXTRAS[extra].modules]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
from grantwire_idempotency import *
known = set(globals())
import grantwire_idempotency as library
print(*sorted(set(dir(library)) - known))
"""
    process = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(LIBRARY)}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert set(process.stdout.split()) == {name for extra in missing for name in EXTRAS[extra].names}


def test_no_job_needs_powertools() -> None:
    """C14: the metrics for CloudWatch need only the standard library."""
    job = f"{JOB}, EmfMetrics, MemoryStore; idempotent(MemoryStore(), key=str, name='job', metrics=EmfMetrics())(print)"
    assert "aws_lambda_powertools" not in list_loaded_modules(job)


@pytest.mark.parametrize(
    ("package", "part", "use"),
    [
        ("redis", "RedisStore", "from grantwire_idempotency import RedisStore"),
        ("redis", "RedisLocks", "from grantwire_idempotency import RedisLocks"),
        ("psycopg", "PostgresStore", "from grantwire_idempotency import PostgresStore"),
        ("psycopg", "TransactionGuard", "from grantwire_idempotency import TransactionGuard"),
        ("rbloom", "BloomFilter", "from grantwire_idempotency import BloomFilter; BloomFilter(1)"),
        ("aws-lambda-powertools", "PowertoolsMetrics", "from grantwire_idempotency import PowertoolsMetrics"),
        ("opentelemetry-api", "OpenTelemetryMetrics", "from grantwire_idempotency import OpenTelemetryMetrics"),
    ],
)
def test_import_error_names_missing_package(package: str, part: str, use: str) -> None:
    """C14: every package is optional; the error says what to install."""
    module = package.removesuffix("-api").replace("-", "_")
    hidden = f"import sys; sys.modules[{module!r}] = None; {use}"
    process = subprocess.run(
        [sys.executable, "-c", hidden], env={"PYTHONPATH": str(LIBRARY)}, capture_output=True, text=True, check=False
    )
    *_, last = process.stderr.splitlines()
    assert last.startswith(
        f"ImportError: {part} requires the package {package}, which is not installed: pip install {package}"
    )


def test_library_imports_nothing_of_the_service() -> None:
    """Every module can be imported without the service on the path."""
    modules = [
        ".".join(path.relative_to(LIBRARY).with_suffix("").parts).removesuffix(".__init__")
        for path in (LIBRARY / "grantwire_idempotency").rglob("*.py")
    ]
    assert len(modules) > 20
    assert "grantwire" not in list_loaded_modules(f"import {', '.join(modules)}")


@pytest.mark.parametrize(
    ("store", "packages"),
    [
        ("MemoryStore", set()),
        ("RedisStore", {"redis", "opentelemetry"}),  # redis-py imports it if it is installed
        ("PostgresStore", {"psycopg"}),
    ],
    ids=["memory", "redis", "postgres"],
)
def test_job_imports_only_its_own_store(store: str, packages: set[str]) -> None:
    """For example, a job with a RedisStore imports neither psycopg nor nats nor boto3."""
    loaded = list_loaded_modules(f"{JOB}, {store}")
    assert packages <= loaded
    assert not loaded & ((SERVERS | OPTIONAL_PACKAGES) - packages)


def test_make_check_requires_documented_coverage() -> None:
    """C13: `make check` fails if the tests of the library cover less than 80 % of it."""
    coverage = CHECKS["coverage"]
    assert "--cov=grantwire_idempotency" in coverage
    (threshold,) = (option.partition("=")[2] for option in coverage if option.startswith("--cov-fail-under="))
    assert int(threshold) >= 80
    assert [name for name in coverage if "tests/" in name and not (ROOT / name).is_dir()] == []
