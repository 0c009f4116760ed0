"""Settings: frozen dataclasses read from the environment, all problems reported at once.

A group of settings declares its variables; a function's settings are made of groups:

    @dataclass(frozen=True, slots=True)
    class IdempotencySettings:
        ttl: timedelta = setting("IDEMPOTENCY_TTL", duration(), default="24h")

    settings = load(ApiSettings, os.environ)     # or ConfigError with every missing, bad or contradictory variable

Defaults are written as they would stand in the environment. An empty variable counts as missing, because a template
cannot leave one out. A group may define `problems()` for rules that span several variables. Plain dataclasses: a
settings library would cost a tenth of a second of every cold start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from grantwire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

_PEM = "-----BEGIN CERTIFICATE-----"

# Where Amazon Linux, Debian, Alpine and macOS keep the certificates that they trust. libpq from a wheel has a folder of
# its own in mind, which exists nowhere.
_SYSTEM_CERTIFICATES = (
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One environment variable: its name, how it is read and what it is when nobody sets it."""

    name: str
    parse: Callable[[str], T]
    default: str | None
    optional: bool


def setting(
    name: str,
    parse: Callable[[str], Any],
    *,
    default: str | None = None,
    optional: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field that is read from variable `name`; without default and not optional it is required."""
    return field(repr=not secret, metadata={"variable": Variable(name, parse, default, optional)})


def group(kind: type[T], *, prefix: str = "") -> T:
    """Declare a field that is itself a group of settings, whose variables' names begin with `prefix`."""
    return cast("T", field(metadata={"group": kind, "prefix": prefix}))


def load(kind: type[T], environ: Mapping[str, str]) -> T:
    """Read all of `kind` from `environ`, or raise one ConfigError that names every problem."""
    problems: list[str] = []
    loaded = _read(kind, environ, problems)
    if problems or loaded is None:
        raise ConfigError(problems)
    return loaded


def variables(kind: type, prefix: str = "") -> Iterator[Variable[Any]]:
    """Every variable that `kind` reads, its groups included."""
    for item in fields(kind):
        if "group" in item.metadata:
            yield from variables(item.metadata["group"], prefix + item.metadata["prefix"])
        else:
            yield _prefixed(item.metadata["variable"], prefix)


def _prefixed(variable: Variable[T], prefix: str) -> Variable[T]:
    return replace(variable, name=prefix + variable.name)


def _read(kind: type[T], environ: Mapping[str, str], problems: list[str], prefix: str = "") -> T | None:
    before = len(problems)
    values: dict[str, Any] = {}
    for item in fields(cast("Any", kind)):
        if "group" in item.metadata:
            inner = prefix + item.metadata["prefix"]
            values[item.name] = _read(item.metadata["group"], environ, problems, inner)
        else:
            values[item.name] = _value(_prefixed(item.metadata["variable"], prefix), environ, problems)
    if len(problems) > before:
        return None
    loaded = kind(**values)
    found: Iterable[str] = getattr(loaded, "problems", tuple)()
    problems.extend(_with_prefix(problem, kind, prefix) if prefix else problem for problem in found)
    return loaded


def _with_prefix(problem: str, kind: type, prefix: str) -> str:
    """A problem as its group tells it, with the full names of the variables."""
    names = "|".join(variable.name for variable in variables(kind))
    return re.sub(rf"\b(?:{names})\b", lambda found: prefix + found[0], problem)


def _value(variable: Variable[T], environ: Mapping[str, str], problems: list[str]) -> T | None:
    raw = environ.get(variable.name, "").strip() or variable.default
    if raw is None:
        if not variable.optional:
            problems.append(f"{variable.name} is missing")
        return None
    try:
        return variable.parse(raw)
    except ValueError as error:
        problems.append(f"{variable.name} {error}")
        return None


def text(value: str) -> str:
    """Any text."""
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    """One of several words."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}, not {value!r}")
        return value

    return parse


@dataclass(frozen=True, slots=True)
class Certificates:
    """The authorities whose certificates are believed: a PEM file, or PEM text; neither if none was found."""

    file: str | None = None
    text: str | None = field(default=None, repr=False)

    @property
    def found(self) -> bool:
        """Whether there are any."""
        return self.file is not None or self.text is not None


def certificates(value: str) -> Certificates:
    """`system`, the path of a PEM file, or PEM text, whose lines may end with a written backslash and n."""
    if value == "system":
        return Certificates(file=next((path for path in _SYSTEM_CERTIFICATES if Path(path).is_file()), None))
    if value.startswith(_PEM):
        return Certificates(text=value.replace("\\n", "\n"))
    try:
        readable = _PEM in Path(value).read_text(encoding="latin-1")
    except (OSError, ValueError):
        readable = False
    if not readable:
        raise ValueError("must be system, the path of a PEM file with certificates that can be read, or PEM text")
    return Certificates(file=value)


def flag(value: str) -> bool:
    """`true` or `false`."""
    if value not in {"true", "false"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return value == "true"


def integer(*, low: int, high: int) -> Callable[[str], int]:
    """A whole number in a range."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"must be a whole number, not {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}, not {number}")
        return number

    return parse


def number(*, low: float, high: float) -> Callable[[str], float]:
    """A decimal number in a range."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            raise ValueError(f"must be a number, not {value!r}") from None
        if not low <= parsed <= high:
            raise ValueError(f"must be between {low} and {high}, not {value}")
        return parsed

    return parse


def duration(*, low: str = "0s", high: str = "36500d") -> Callable[[str], timedelta]:
    """A duration such as `200ms`, `1s`, `24h`, in a range."""

    def parse(value: str) -> timedelta:
        length = parse_duration(value)
        if not parse_duration(low) <= length <= parse_duration(high):
            raise ValueError(f"must be between {low} and {high}, not {value}")
        return length

    return parse


def parse_duration(value: str) -> timedelta:
    """`200ms`, `1s`, `10m`, `24h`, `30d`."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError(f"must be a duration such as 200ms, 1s or 24h, not {value!r}")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ValueError("is longer than anybody can count") from None
