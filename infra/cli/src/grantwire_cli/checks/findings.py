"""The result of a check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is. Only a problem makes `doctor` fail."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """What a check found, and the command that repairs it."""

    check: str
    level: Level
    message: str
    repair: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for JSON."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, record: dict[str, str]) -> Finding:
        """Return the finding that `as_dict` described."""
        return cls(record["check"], Level(record["level"]), record["message"], record.get("repair", ""))


def ok(check: str, message: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, repair: str = "") -> Finding:
    """Return a finding that an operator should know about."""
    return Finding(check, Level.WARNING, message, repair)


def problem(check: str, message: str, repair: str) -> Finding:
    """Return a finding that must be repaired."""
    return Finding(check, Level.PROBLEM, message, repair)
