"""Trace ids for log lines and events.

A trace id has the form of X-Ray, `1-<8 hexadecimal digits>-<24 digits>`. W3C Trace Context has the same 32 digits
without hyphens, so that an id of one form can be written in the other.
"""

from __future__ import annotations

import os
import re
import time

_TRACE_ROOT = re.compile(r"(?:^|;)\s*Root=(1-[0-9a-f]{8}-[0-9a-f]{24})")
_XRAY_ID = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_W3C_ID = re.compile(r"[0-9a-f]{32}")
# Version 00 has exactly these parts; a later version may have more. Version ff, and ids of zeros, are not allowed.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_FIRST_VERSION = "00"
_MAX_HEADER_LENGTH = 512


def trace_id_from_headers(*headers: str | None, traceparent: str | None = None) -> str:
    """Return the trace id of `traceparent`, else the X-Ray trace id in the first header that has one, or a new one.

    The caller sends `traceparent`, so it is preferred to the id that the gateway adds to every request.
    """
    if traceparent and (trace_id := _from_traceparent(traceparent)):
        return trace_id
    for header in headers:
        if header and (match := _TRACE_ROOT.search(header)):
            return match[1]
    return f"1-{int(time.time()):08x}-{os.urandom(12).hex()}"


def parse_trace_id(text: str) -> str | None:
    """Return a trace id in the form in which it is stored; None if the text is none.

    `text` is an id of X-Ray, with `Root=` or without, an id of W3C Trace Context, or a whole `traceparent`.
    """
    if match := _TRACE_ROOT.search(text):
        return match[1]
    if _XRAY_ID.fullmatch(text):
        return text
    return _to_xray(text) if _W3C_ID.fullmatch(text) else _from_traceparent(text)


def build_traceparent(trace_id: str, parent_id: str) -> str | None:
    """Return the header `traceparent` for a message, None if the trace id has no such form.

    `parent_id` is the UUID of the event or notification: its last 16 digits identify the step, also of a repeat.
    """
    match = _XRAY_ID.fullmatch(trace_id)
    digits = parent_id.replace("-", "")[-16:]
    return None if match is None else f"{_FIRST_VERSION}-{match[1]}{match[2]}-{digits}-01"


def _from_traceparent(header: str) -> str | None:
    match = _TRACEPARENT.fullmatch(header.strip()) if len(header) <= _MAX_HEADER_LENGTH else None
    if match is None or (match[1] == _FIRST_VERSION and match[3]):
        return None
    return _to_xray(match[2])


def _to_xray(digits: str) -> str:
    return f"1-{digits[:8]}-{digits[8:]}"
