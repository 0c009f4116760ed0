"""Settings: frozen dataclasses that are read from environment variables.

A group of settings declares its variables. The settings of a function are composed of groups:

    @dataclass(frozen=True, slots=True)
    class IdempotencySettings:
        ttl: timedelta = setting("IDEMPOTENCY_TTL", duration(), default="24h")

    settings = load(ApiSettings, os.environ)     # raises one ConfigError that names every invalid variable

Defaults have the form of an environment variable and are parsed like one. An empty variable counts as missing, because
the template sets an empty variable where its parameter is empty. A group may define `problems()` to check rules that
involve several variables. The variable GRANTWIRE_SETTINGS is a list that sets other variables. These are plain
dataclasses because pydantic-settings would add about 0.1 s to a cold start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from grantwire.adjustable import ADJUSTABLE
from grantwire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

# The variable with a list of other variables: the parameter `Settings` of the template.
LIST = "GRANTWIRE_SETTINGS"

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One environment variable: its name, parser and default. An optional one without a default may be None."""

    name: str
    parse: Callable[[str], T]
    default: str | None
    optional: bool
    secret: bool = False


def setting(
    name: str,
    parse: Callable[[str], Any],
    *,
    default: str | None = None,
    optional: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field that is read from the variable `name`; required unless it has a default or is optional."""
    return field(repr=not secret, metadata={"variable": Variable(name, parse, default, optional, secret)})


def group(settings_class: type[T], *, prefix: str = "", defaults: Mapping[str, str] = MappingProxyType({})) -> T:
    """Declare a field that is a group of settings.

    `prefix` is prepended to the names of its variables; `defaults`, by name without the prefix, replace some defaults.
    """
    return cast("T", field(metadata={"group": _Group(settings_class, prefix, defaults)}))


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of settings inside another one."""

    settings_class: type
    prefix: str
    defaults: Mapping[str, str]

    def within(self, outer: _Group) -> _Group:
        """Return this group with the full names of its variables."""
        return replace(self, prefix=outer.prefix + self.prefix)

    def variable(self, declared: Variable[T]) -> Variable[T]:
        """Return a variable of the group with its full name and its default."""
        default = self.defaults.get(declared.name, declared.default)
        return replace(declared, name=self.prefix + declared.name, default=default)


def load(settings_class: type[T], environ: Mapping[str, str]) -> T:
    """Return an instance of `settings_class` read from `environ`; raise one ConfigError that names every problem."""
    problems: list[str] = []
    loaded = _load_group(_Group(settings_class, "", {}), _with_list(environ, problems), problems)
    if problems or loaded is None:
        raise ConfigError(problems)
    return cast("T", loaded)


def parse_list(value: str) -> dict[str, str]:
    """Parse GRANTWIRE_SETTINGS, `NAME=value` separated by commas; raise ValueError if a name is not adjustable."""
    parsed: dict[str, str] = {}
    for item in value.split(",") if value.strip() else ():
        name, _, setting_value = (part.strip() for part in item.partition("="))
        if not name or not setting_value or name in parsed:
            raise ValueError(f"must be NAME=value, separated by commas, each name once, not {item.strip()!r}")
        if name not in ADJUSTABLE:
            raise ValueError(f"cannot set {name!r}: docs/settings.md has the names that it can set")
        parsed[name] = setting_value
    return parsed


def _with_list(environ: Mapping[str, str], problems: list[str]) -> Mapping[str, str]:
    """Add the variables of GRANTWIRE_SETTINGS. A variable that is set by itself has priority, unless it is empty."""
    try:
        listed = parse_list(environ.get(LIST, ""))
    except ValueError as error:
        problems.append(f"{LIST} {error}")
        return environ
    return listed | {name: value for name, value in environ.items() if name not in listed or value.strip()}


def variables(settings_class: type) -> Iterator[Variable[Any]]:
    """Yield every variable that `settings_class` and its groups read, with its full name."""
    yield from _list_variables(_Group(settings_class, "", {}))


def _list_variables(settings: _Group) -> Iterator[Variable[Any]]:
    for item in fields(settings.settings_class):
        if "group" in item.metadata:
            yield from _list_variables(item.metadata["group"].within(settings))
        else:
            yield settings.variable(item.metadata["variable"])


def _load_group(settings: _Group, environ: Mapping[str, str], problems: list[str]) -> Any:
    """Return an instance of the group's class, or None if there are problems."""
    problems_before = len(problems)
    values: dict[str, Any] = {}
    for item in fields(settings.settings_class):
        if "group" in item.metadata:
            values[item.name] = _load_group(item.metadata["group"].within(settings), environ, problems)
        else:
            values[item.name] = _read_variable(settings.variable(item.metadata["variable"]), environ, problems)
    if len(problems) > problems_before:
        return None
    loaded = settings.settings_class(**values)
    group_problems: Iterable[str] = getattr(loaded, "problems", tuple)()
    problems.extend(_use_full_names(problem, settings) if settings.prefix else problem for problem in group_problems)
    return loaded


def _use_full_names(problem: str, settings: _Group) -> str:
    """Add the prefix of a group to the variables in a problem, which the group names without it."""
    names = "|".join(variable.name for variable in variables(settings.settings_class))
    return re.sub(rf"\b(?:{names})\b", lambda match: settings.prefix + match[0], problem)


def _read_variable(variable: Variable[T], environ: Mapping[str, str], problems: list[str]) -> T | None:
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
    """Parse any text."""
    return value


def names(value: str) -> tuple[str, ...]:
    """Parse names that are separated by commas."""
    parsed = tuple(name.strip() for name in value.split(","))
    for name in parsed:
        if not _NAME.fullmatch(name):
            raise ValueError(f"must be names of letters, digits, _ and -, separated by commas, not {value!r}")
    return parsed


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser for one of several fixed values."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}, not {value!r}")
        return value

    return parse


def flag(value: str) -> bool:
    """Parse `true` or `false`."""
    if value not in {"true", "false"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return value == "true"


def integer(*, low: int, high: int) -> Callable[[str], int]:
    """Return a parser for a whole number between `low` and `high`."""

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
    """Return a parser for a decimal number between `low` and `high`."""

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
    """Return a parser for a duration between `low` and `high`."""

    def parse(value: str) -> timedelta:
        length = parse_duration(value)
        if not parse_duration(low) <= length <= parse_duration(high):
            raise ValueError(f"must be between {low} and {high}, not {value}")
        return length

    return parse


def parse_duration(value: str) -> timedelta:
    """Parse a duration: `200ms`, `1s`, `10m`, `24h` or `30d`. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError(f"must be a duration such as 200ms, 1s or 24h, not {value!r}")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS_PER_UNIT[match[2]])
    except OverflowError:
        raise ValueError(f"must be at most {timedelta.max.days}d") from None
