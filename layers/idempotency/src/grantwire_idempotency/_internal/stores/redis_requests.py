"""The entries of `RedisStore`, and the scripts that read and write them: the part that does not depend on asyncio.

A key has up to three entries and a result. Each has its own time to live, and the server deletes it automatically:

    <prefix><key>          the entry that expires last, so it exists while any of the three does
    <prefix>other:<key>    the entry that expires before it
    <prefix>third:<key>    the entry that expires first
    <prefix>result:<key>   the stored result of the completion, unless it is None

An entry is a claim, `claim:<mark>:<hash>:<token>` (`reclaim` if there were other entries when the key was claimed), a
completion, `completed:<mark>:<hash>:<token>`, or a failure, `failed:::<error>`. The hash is that of the key's content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.redis.scripts import FENCE, Script
from grantwire_idempotency._internal.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    completion_ttl,
    truncate_error,
    validate_result,
)
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grantwire_idempotency._internal.stores.interface import CheckResult, Key

_ENTRY_KINDS = ("", "other:", "third:", "result:")
# Prefix for a key that begins like another entry's name: key "result:a" must not collide with the result of key "a".
_ESCAPE = "key:"
_RESERVED = (*_ENTRY_KINDS[1:], _ESCAPE)

_ENTRY = re.compile(r"(claim|reclaim|completed|failed):(\d*):([^:]*):(.*)", re.DOTALL)

# The common start of all scripts: read the entries, and define how to write them.
_READ_ENTRIES = """
local mark, token = string.match(ARGV[1], '^(%d*):[^:]*:(.*)$')
local ttl = tonumber(ARGV[2])
local entries = {}
for position = 1, 3 do
  local value = redis.call('GET', KEYS[position])
  if value then
    local kind, own, hash, text = string.match(value, '^(%a+):(%d*):([^:]*):(.*)$')
    local left = math.max(1, redis.call('PTTL', KEYS[position]))
    entries[kind == 'reclaim' and 'claim' or kind] = {value = value, mark = own, hash = hash, text = text, left = left}
  end
end
local claim, completion, failure = entries.claim, entries.completed, entries.failed
local covered = completion and (mark == '' or completion.mark == '' or tonumber(mark) <= tonumber(completion.mark))
local taken = covered or (claim and claim.text ~= token)

local function write_entries(...)
  local written = {}
  for position = 1, 3 do
    local entry = select(position, ...)
    if entry then
      table.insert(written, entry)
    end
  end
  table.sort(written, function(one, two) return one.left > two.left end)
  for position = 1, 3 do
    if written[position] then
      redis.call('SET', KEYS[position], written[position].value, 'PX', written[position].left)
    else
      redis.call('DEL', KEYS[position])
    end
  end
end
"""

# The first entry exists while any of them does, so a new key is claimed without reading anything.
_CLAIM_NEW_KEY = """
if redis.call('SET', KEYS[1], 'claim:' .. ARGV[1], 'NX', 'PX', ARGV[2]) then
  return {'NEW', fence}
end
"""

# Most repeats are of a key without a mark, whose completion is the only entry.
_FIND_DUPLICATE = """
local entry = string.sub(ARGV[1], 1, 1) == ':' and redis.call('GET', KEYS[1]) or ''
if string.sub(entry, 1, 10) == 'completed:' then
  return {'DUPLICATE', string.match(entry, '^completed::([^:]*):') or '', redis.call('GET', KEYS[4])}
end
"""

_CHECK = """
if covered then
  return {'DUPLICATE', completion.mark == mark and completion.hash or '', redis.call('GET', KEYS[4])}
elseif taken then
  return {'IN_PROGRESS', claim.mark == mark and claim.hash or '', claim.left}
end
local kind = (completion or failure) and 'reclaim:' or 'claim:'
write_entries({value = kind .. ARGV[1], left = ttl}, completion, failure)
return {'NEW', fence, failure and failure.text}
"""

# A claim that is the only entry, and has no mark: it is completed without reading the others. Returns 0 for any other.
_COMPLETE_ONLY_ENTRY = """
if redis.call('GET', KEYS[1]) ~= 'claim::' .. ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], 'completed::' .. ARGV[1], 'PX', ARGV[2])
if ARGV[3] then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])
end
return 1
"""

# ARGV[3]: the result; ARGV[4]: how long it is kept, if that is shorter.
_COMPLETE = """
if completion and completion.text == token then
  return 1
elseif taken or not claim then
  return 0
end
write_entries({value = 'completed:' .. ARGV[1], left = ttl})
if ARGV[3] then
  redis.call('SET', KEYS[4], ARGV[3], 'PX', ARGV[4] or ttl)
else
  redis.call('DEL', KEYS[4])
end
return 1
"""

# A full server allows a SET only after a DEL.
_FAIL = """
if not taken then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
  write_entries(completion, {value = 'failed:::' .. ARGV[3], left = ttl})
end
"""

_EXTEND = """
if taken or not claim then
  return 0
end
claim.left = ttl
write_entries(claim, completion, failure)
return 1
"""

_GET_STATE = "return redis.call('MGET', unpack(KEYS))"

_WITHOUT_FENCE = "local fence = 0\n"

_SCRIPTS = {
    "check": Script.of(_WITHOUT_FENCE + _FIND_DUPLICATE + _CLAIM_NEW_KEY + _READ_ENTRIES + _CHECK),
    "check and draw fence": Script.of(FENCE + _CLAIM_NEW_KEY + _FIND_DUPLICATE + _READ_ENTRIES + _CHECK),
    "complete only entry": Script.of(_COMPLETE_ONLY_ENTRY),
    "complete": Script.of(_READ_ENTRIES + _COMPLETE),
    "fail": Script.of(_READ_ENTRIES + _FAIL),
    "extend": Script.of(_READ_ENTRIES + _EXTEND),
    "state": Script.of(_GET_STATE),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A script with its keys and arguments, and the function that reads its response."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int]
    parse: Callable[[Any], Any]


class Requests:
    """The requests of a store."""

    def __init__(self, prefix: str, *, hash_tags: bool, fences: bool) -> None:
        self._prefix = prefix
        self._hash_tags = hash_tags
        self._fences = fences
        # Whether the last check by script found a new key. A wrong guess costs time and changes no result.
        self._expects_new_keys = True

    def claim_new_key(self, claim: Claim, ttl: timedelta) -> tuple[str, str, int] | None:
        """Return the arguments of `set_new` that claim the key if it is new; None if a script should check it.

        Most keys with a mark are not new, because an earlier mark is completed.
        """
        if self._fences or claim.key.mark is not None or not self._expects_new_keys:
            return None
        value = f"claim::{claim.key.content_hash}:{claim.token}"
        return self._names(claim.key, _ENTRY_KINDS[:1])[0], value, _milliseconds(ttl)

    def check(self, claim: Claim, ttl: timedelta) -> Request:
        """Return the request that decides whether the key is new, and claims it then."""
        key = claim.key

        def parse(response: Any) -> CheckResult:
            decision, *details = response
            decision = _text(decision)
            self._expects_new_keys = decision == "NEW"
            if decision == "NEW":
                last_error = _text(details[1]) if len(details) > 1 else None
                return Claim(key, claim.token, details[0], last_error)
            content_hash = _text(details[0]) or ""
            if decision == "DUPLICATE":
                return Duplicate(key, _text(details[1]) if len(details) > 1 else None, content_hash)
            return InProgress(key, timedelta(milliseconds=details[1]), content_hash)

        script = _SCRIPTS["check and draw fence" if self._fences else "check"]
        return Request(script, self._names(key), _arguments(claim, ttl), parse)

    def complete_only_entry(self, claim: Claim, result: str | None, ttl: timedelta) -> Request | None:
        """Return the request that completes a claim without a mark, and returns false if it is not the only entry."""
        if claim.key.mark is not None:
            return None
        arguments: list[str | int] = [f"{claim.key.content_hash}:{claim.token}", _milliseconds(ttl)]
        if validate_result(result) is not None:
            arguments.append(str(result))
        names = self._names(claim.key, _ENTRY_KINDS[::3])
        return Request(_SCRIPTS["complete only entry"], names, arguments, bool)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None) -> Request:
        """Return the request that completes any claim."""
        kept = completion_ttl(claim.key, ttl, order_ttl)
        arguments = _arguments(claim, kept)
        if validate_result(result) is not None:
            arguments.append(str(result))
            if ttl < kept:
                arguments.append(_milliseconds(ttl))
        return Request(_SCRIPTS["complete"], self._names(claim.key), arguments, _require_claim)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> Request:
        """Return the request that releases the key."""
        arguments = [*_arguments(claim, ttl), truncate_error(error)]
        return Request(_SCRIPTS["fail"], self._names(claim.key), arguments, lambda _response: None)

    def extend(self, claim: Claim, ttl: timedelta) -> Request:
        """Return the request that lets the claim expire later."""
        return Request(_SCRIPTS["extend"], self._names(claim.key), _arguments(claim, ttl), _require_claim)

    def get_result(self, key: Key) -> Request:
        """Return the request that reads the state of the key."""
        return Request(_SCRIPTS["state"], self._names(key), (), _parse_state)

    def _names(self, key: Key, kinds: Sequence[str] = _ENTRY_KINDS) -> list[str]:
        value, prefix = key.value, self._prefix
        if self._hash_tags:
            # Redis hashes the text between the first pair of braces, or the whole name if that text is empty.
            tag = f"\\{value}" if value.startswith(("}", "\\")) else value
            return [f"{prefix}{kind}{{{tag}}}" for kind in kinds]
        escaped = f"{_ESCAPE}{value}" if value.startswith(_RESERVED) else value
        return [f"{prefix}{kind}{value}" if kind else f"{prefix}{escaped}" for kind in kinds]


def _require_claim(response: Any) -> None:
    if not response:
        raise claim_lost_error()


def _parse_state(response: Any) -> KeyState | None:
    *values, result = map(_text, response)
    entries = dict(_parse_entry(value) for value in values if value is not None)
    error = entries["failed"][2] if "failed" in entries else None
    if "claim" in entries:
        return KeyState(KeyStatus.IN_PROGRESS, None, None, *entries["claim"][:2])
    if "completed" in entries:
        return KeyState(KeyStatus.COMPLETED, result, error, *entries["completed"][:2])
    return None if error is None else KeyState(KeyStatus.FAILED, error=error)


def _parse_entry(value: str) -> tuple[str, tuple[int | None, str, str]]:
    """Return `claim`, `completed` or `failed`, with the mark, the content hash and the text after them."""
    match = _ENTRY.fullmatch(value)
    if match is None:
        raise InternalError("unknown entry in Redis; check that no other application uses the prefix of this store")
    return match[1].removeprefix("re"), (int(match[2]) if match[2] else None, match[3], match[4])


@lru_cache(maxsize=64)
def _milliseconds(ttl: timedelta) -> int:
    return clamp_ttl(ttl) // timedelta(milliseconds=1)


def _arguments(claim: Claim, ttl: timedelta) -> list[str | int]:
    """Return the arguments that all scripts begin with: `mark:hash:token`, and the time to live."""
    mark = "" if claim.key.mark is None else claim.key.mark
    return [f"{mark}:{claim.key.content_hash}:{claim.token}", _milliseconds(ttl)]


def _text(value: Any) -> str | None:
    """Return a response as text, whether or not the client decodes responses."""
    return value.decode() if isinstance(value, bytes) else value
