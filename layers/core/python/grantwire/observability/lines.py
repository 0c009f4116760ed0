"""The log: one JSON object for each line.

The standard library's logging, with a formatter for JSON, takes 60 microseconds for a line and this takes eight; for a
replay that is a fifth of all that it costs (ADR 0020).
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
# Lambda's own names for two of them.
_ALIASES = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}
_INFO = LEVELS["INFO"]

# ASCII, because a caller's text may hold what no encoding can; and a line must be written whatever is in it.
encode = json.JSONEncoder(separators=(",", ":"), default=str, skipkeys=True).encode


class Log:
    """Writes what is at least as bad as `level`; every line carries the keys that were appended."""

    def __init__(self, service: str, *, level: str) -> None:
        self._service = service
        self._context: dict[str, Any] = {}
        self._second = 0
        self._second_text = ""
        self.setLevel(level)

    def setLevel(self, level: str | int) -> None:  # noqa: N802 - as everywhere in Python
        """From now on; a name or a number."""
        name = level.upper() if isinstance(level, str) else ""
        self.log_level = level if isinstance(level, int) else LEVELS.get(_ALIASES.get(name, name), _INFO)

    @property
    def debugging(self) -> bool:
        """Whether it is worth the while to have more to say."""
        return self.log_level <= LEVELS["DEBUG"]

    def append_keys(self, **keys: Any) -> None:
        """What every line says from now on."""
        self._context.update(keys)

    def debug(self, message: str, **fields: Any) -> None:
        """For somebody who looks closely."""
        if self.log_level <= LEVELS["DEBUG"]:
            self._write("DEBUG", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """What happened."""
        if self.log_level <= _INFO:
            self._write("INFO", message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """What may be a problem."""
        if self.log_level <= LEVELS["WARNING"]:
            self._write("WARNING", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """What is one."""
        if self.log_level <= LEVELS["ERROR"]:
            self._write("ERROR", message, fields)

    def exception(self, message: str, **fields: Any) -> None:
        """An error, with the exception that is being handled."""
        if self.log_level <= LEVELS["ERROR"]:
            self._write("ERROR", message, {"exc_info": sys.exc_info()[1], **fields})

    def info_with(self, metrics: str, message: str, **fields: Any) -> None:
        """What happened and its metrics, which are JSON text, in one line; above INFO the metrics alone."""
        if self.log_level > _INFO:
            self._put(f'{{"service":"{self._service}",{metrics}}}\n')
            return
        members = "".join([f',"{name}":{_text(value)}' for name, value in (self._context | fields).items()])
        head = f'"level":"INFO","message":"{message}","timestamp":"{self._timestamp()}","service":"{self._service}"'
        self._put(f"{{{head}{members},{metrics}}}\n")

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        caller = sys._getframe(2)  # noqa: SLF001 - where the line was asked for
        location = f"{caller.f_code.co_name}:{caller.f_lineno}"
        error = fields.pop("exc_info", None)
        line = {"level": level, "location": location, "message": message, **self._head(), **fields}
        if isinstance(error, BaseException):
            line |= {"exception": "".join(traceback.format_exception(error)), "exception_name": type(error).__name__}
        self.emit(line)

    def _head(self) -> dict[str, Any]:
        return {"timestamp": self._timestamp(), "service": self._service, **self._context}

    def _timestamp(self) -> str:
        """RFC 3339, as Lambda wants it; a second's text is made once."""
        milliseconds = time.time_ns() // 1_000_000
        second, rest = divmod(milliseconds, 1000)
        if second != self._second:
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._second_text}.{rest:03}Z"

    def emit(self, line: dict[str, Any], encoded: str = "") -> None:
        """Write one object as it is, with members that are JSON text already."""
        text = encode(line)
        self._put(f"{text[:-1]},{encoded}}}\n" if encoded else f"{text}\n")

    @staticmethod
    def _put(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()


def _text(value: Any) -> str:
    """A value in JSON; what is common goes without the encoder."""
    if type(value) is str:
        return quoted(value)
    if type(value) is int:
        return str(value)
    if value is None:
        return "null"
    return ("true" if value else "false") if type(value) is bool else encode(value)
