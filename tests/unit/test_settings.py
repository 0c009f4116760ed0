from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire.database import DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.runtime.api import ApiSettings
from grantwire.settings import duration, flag, group, integer, load, parse_duration, setting, text, variables

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Inner:
    """A group."""

    low: int = setting("LOW", integer(low=0, high=9), default="1")
    high: int = setting("HIGH", integer(low=0, high=9), default="5")

    def problems(self) -> Iterator[str]:
        """A rule that spans two variables."""
        if self.low > self.high:
            yield "LOW must not exceed HIGH"


@dataclass(frozen=True, slots=True)
class Outer:
    """Made of a group and its own variables."""

    name: str = setting("NAME", text)
    password: str | None = setting("PASSWORD", text, optional=True, secret=True)
    on: bool = setting("ON", flag, default="false")
    wait: timedelta = setting("WAIT", duration(low="10ms", high="1m"), default="200ms")
    inner: Inner = group(Inner)


def test_defaults_apply_and_values_replace_them() -> None:
    """What is not set has its default; what is set is parsed."""
    loaded = load(Outer, {"NAME": "n", "ON": "true", "HIGH": "7"})
    assert loaded == Outer("n", None, on=True, wait=timedelta(milliseconds=200), inner=Inner(1, 7))


def test_every_problem_is_named_at_once() -> None:
    """A person mends the environment once, not variable by variable."""
    with pytest.raises(ConfigError) as caught:
        load(Outer, {"NAME": " ", "ON": "yes", "WAIT": "2m", "LOW": "x", "HIGH": "10"})
    assert caught.value.problems == (
        "NAME is missing",
        "ON must be true or false, not 'yes'",
        "WAIT must be between 10ms and 1m, not 2m",
        "LOW must be a whole number, not 'x'",
        "HIGH must be between 0 and 9, not 10",
    )


def test_values_that_contradict_each_other_are_a_problem() -> None:
    """Each is fine alone."""
    with pytest.raises(ConfigError, match="LOW must not exceed HIGH"):
        load(Outer, {"NAME": "n", "LOW": "6"})


def test_an_empty_variable_is_a_missing_one() -> None:
    """A template cannot leave a variable out, it can only leave it empty."""
    assert load(Inner, {"LOW": ""}).low == 1


def test_a_secret_is_not_shown() -> None:
    """Settings are logged and printed when something goes wrong."""
    assert "hunter2" not in repr(load(Outer, {"NAME": "n", "PASSWORD": "hunter2"}))
    assert "hunter2" not in repr(load(ApiSettings, {"DATABASE_URL": "postgresql://u:hunter2@h/d"}))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("200ms", 0.2), ("1s", 1), ("1.5s", 1.5), ("10m", 600), ("24h", 86400), ("30d", 2592000)],
)
def test_durations_are_written_with_their_unit(written: str, seconds: float) -> None:
    """O6: as the documents write them."""
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize("written", ["1", "s", "-1s", "1 s", "1w", "1s2s"])
def test_anything_else_is_not_a_duration(written: str) -> None:
    """A bare number would leave the unit to a guess."""
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(written)


@pytest.mark.parametrize(
    "environ",
    [{}, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_SECRET_ARN": "arn:aws:secretsmanager:x"}],
    ids=["neither", "both"],
)
def test_there_is_one_way_to_the_database(environ: dict[str, str]) -> None:
    """A URL or a secret, not both and not none."""
    with pytest.raises(ConfigError, match="exactly one of DATABASE_URL and DATABASE_SECRET_ARN"):
        load(DatabaseSettings, environ)


def test_a_group_s_prefix_is_part_of_every_complaint() -> None:
    """The same group serves outbox and notifications; a person must know which of the two is meant."""

    @dataclass(frozen=True, slots=True)
    class Prefixed:
        """Made of a group with a prefix."""

        inner: Inner = group(Inner, prefix="OUTBOX_")

    with pytest.raises(ConfigError, match="OUTBOX_LOW must be a whole number"):
        load(Prefixed, {"OUTBOX_LOW": "x"})
    with pytest.raises(ConfigError, match=r"LOW must not exceed HIGH \(each with OUTBOX_ in front\)"):
        load(Prefixed, {"OUTBOX_LOW": "6"})
    assert load(Prefixed, {"LOW": "9"}).inner.low == 1


def test_a_kind_knows_its_variables() -> None:
    """What a function reads can be compared with what the template gives it."""
    assert [variable.name for variable in variables(Outer)] == [
        "NAME",
        "PASSWORD",
        "ON",
        "WAIT",
        "LOW",
        "HIGH",
    ]


def test_a_wait_for_a_key_ends_before_its_statement_does() -> None:
    """Otherwise the caller would be told that the database is down."""
    with pytest.raises(ConfigError, match="IDEMPOTENCY_LOCK_WAIT must be shorter"):
        load(ApiSettings, {"DATABASE_URL": "postgresql://u@h/d", "IDEMPOTENCY_LOCK_WAIT": "5s"})
