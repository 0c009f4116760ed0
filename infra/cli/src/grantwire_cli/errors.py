"""Errors of the command, and its exit codes.

CommandError                1  a request was refused, or an action failed
├── UsageError              2  an argument that cannot be right
├── UnavailableError        3  no response, or only 429 and 5xx, after all retries
└── AccessError             4  no token, a token that is refused, a missing scope, an unsafe file
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command, which scripts rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    NO_ACCESS = 4
    NEGATIVE = 5  # it worked, and the result is "no": not entitled, differences, refused lines
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """An expected failure: what failed, and what to try. `code` is the API's error code or the name of a local one."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "", code: str = "FAILED") -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


class UsageError(CommandError):
    """An argument cannot be right. Nothing was sent."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str = "", code: str = "USAGE") -> None:
        super().__init__(message, hint=hint, code=code)


class UnavailableError(CommandError):
    """The installation does not respond, or is overloaded. A change may or may not have been made."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, message: str, *, hint: str = "", code: str = "UNAVAILABLE") -> None:
        super().__init__(message, hint=hint, code=code)


class AccessError(CommandError):
    """The caller may not do this, or a secret is not safe."""

    exit_code = ExitCode.NO_ACCESS

    def __init__(self, message: str, *, hint: str = "", code: str = "FORBIDDEN") -> None:
        super().__init__(message, hint=hint, code=code)
