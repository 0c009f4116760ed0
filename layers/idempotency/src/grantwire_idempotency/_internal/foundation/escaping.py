"""The separator of the parts of a key, such as the name of a job and the key of a call."""

from __future__ import annotations


def escape(part: str) -> str:
    """Return a part of a key without colons, which separate the parts: different parts never make the same key."""
    return part.replace("%", "%25").replace(":", "%3A")
