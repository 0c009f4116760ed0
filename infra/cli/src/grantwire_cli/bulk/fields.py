"""The fields of a line, and the rules of the API for them, checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from grantwire_cli.times import format_time, parse_rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

OPERATIONS = ("grant", "revoke", "extend")
REQUIRED = ("operation", "user_id", "stock_keeping_unit", "reason", "purchase_id")
TIMES = ("starts_at", "expires_at")
FIELDS = TIMES  # the optional fields of an entitlement
OPTIONAL = ("idempotency_key", *FIELDS)
NO_END = "none"  # the expires_at of an extension that removes the end
MAX_LENGTHS = {"user_id": 128, "stock_keeping_unit": 128, "reason": 64, "purchase_id": 128}

# As in openapi.yaml, which a test compares.
FORBIDDEN_CHARACTERS = (
    r"\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufffd"
)
_FORBIDDEN = re.compile(f"[{FORBIDDEN_CHARACTERS}]")
# The escapes of Python for bytes that could not be decoded.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_KEY = re.compile(r"(?!.*, )[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_MAX_KEY_LENGTH = 255


class LineError(ValueError):
    """What is wrong with a line, and what is allowed."""


def parse_item(fields: Mapping[str, Any], import_name: str) -> dict[str, Any]:
    """Return the item of a batch for the fields of one line. An empty optional field counts as missing.

    An extension that removes the end says so (`NO_END`), because an empty field is more often a mistake.

    Raises LineError that names the field and the rule.
    """
    if unknown := sorted(set(fields) - {*REQUIRED, *OPTIONAL}):
        raise LineError(f"unknown field {unknown[0]!a}; allowed are {', '.join((*REQUIRED, *OPTIONAL))}")
    item: dict[str, Any] = {name: _text(name, fields.get(name)) for name in REQUIRED}
    if item["operation"] not in OPERATIONS:
        raise LineError(f"operation must be one of {', '.join(OPERATIONS)}, not {item['operation']!a}")
    item |= _times(item["operation"], fields)
    key = fields.get("idempotency_key")
    item["idempotency_key"] = derive_key(import_name, item) if _is_missing(key) else _check_key(key)
    return item


def removes_end(item: Mapping[str, Any]) -> bool:
    """Return whether an item is an extension that removes the end."""
    return item["operation"] == "extend" and item["expires_at"] is None


def derive_key(import_name: str, item: Mapping[str, Any]) -> str:
    """Return the key of a line: a hash of the import's name and the line's content, the same in every run."""
    content = json.dumps([import_name, item], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"import-{hashlib.sha256(content.encode()).hexdigest()}"


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise LineError(f"{name} must be a string that is not empty")
    limit = MAX_LENGTHS.get(name)
    if limit and len(value) > limit:
        raise LineError(f"{name} must have at most {limit} characters, not {len(value)}")
    if _NOT_UTF8.search(value):
        raise LineError(f"{name} is not valid UTF-8; save the file with this encoding")
    if found := _FORBIDDEN.search(value):
        raise LineError(f"{name} must not contain control or invisible characters (found U+{ord(found[0]):04X})")
    if value[0].isspace() or value[-1].isspace():
        raise LineError(f"{name} must not begin or end with white space")
    return value


def _times(operation: str, fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the times of a line in UTC: optional for a grant, none for a revoke, the end for an extension."""
    given = {name: fields[name] for name in TIMES if not _is_missing(fields.get(name))}
    if operation == "revoke" and given:
        raise LineError(f"a revoke has no {next(iter(given))}")
    if operation == "extend":
        return _new_end(given)
    times: dict[str, str | None] = {name: _parse_time(name, value) for name, value in given.items()}
    if len(times) == len(TIMES) and parse_rfc3339(given["expires_at"]) <= parse_rfc3339(given["starts_at"]):
        raise LineError("expires_at must be after starts_at")
    return times


def _new_end(given: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the end of an extension; the API removes the end if it is null."""
    if "starts_at" in given:
        raise LineError("an extension has no starts_at")
    if "expires_at" not in given:
        raise LineError(f"an extension must have expires_at: the new end, or the word {NO_END} to remove the end")
    if given["expires_at"] == NO_END:
        return {"expires_at": None}
    return {"expires_at": _parse_time("expires_at", given["expires_at"])}


def _parse_time(name: str, value: object) -> str:
    try:
        return format_time(parse_rfc3339(value))  # type: ignore[arg-type]  # JSON may have a value of any type
    except (TypeError, ValueError):
        raise LineError(f"{name} must be a time with a zone, such as 2027-01-31T00:00:00Z, not {value!a}") from None


def _is_missing(value: object) -> bool:
    return value is None or value == ""


def _check_key(key: object) -> str:
    if not isinstance(key, str) or len(key) > _MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise LineError("idempotency_key must have 1 to 255 printable ASCII characters, without a comma and a space")
    return key
