"""Parsing, creating and printing of bearer tokens."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.clients.tokens import Token, generate_client_id
from grantwire.errors import UnauthenticatedError

ENVIRONMENTS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=16)
CLIENT_IDS = st.text(string.ascii_lowercase + string.digits, min_size=12, max_size=12)
SECRETS = st.text(string.ascii_letters + string.digits, min_size=43, max_size=43)
TOKENS = st.builds(Token, ENVIRONMENTS, CLIENT_IDS, SECRETS)
HEADER_PATTERN = re.compile(r"[Bb]earer +gw_[a-z0-9]{1,16}_[a-z0-9]{12}_[A-Za-z0-9]{43}", re.ASCII)


@given(TOKENS, st.sampled_from(["Bearer ", "bearer ", "Bearer    "]))
def test_parsed_token_equals_the_created_token(token: Token, scheme: str) -> None:
    """Environment, client id, secret and hash survive the round trip through the header."""
    parsed = Token.from_header(scheme + token.text)
    assert (parsed.environment, parsed.client_id, parsed.secret) == (token.environment, token.client_id, token.secret)
    assert parsed.hash == token.hash


@given(st.one_of(st.text(), st.from_regex(r"(Bearer )?gw_[\w\s]*_[\w\s]*_[\w\s]*", fullmatch=True)))
def test_malformed_header_is_rejected_without_repeating_it(header: str) -> None:
    """E5: every header is either a token or rejected. The error contains no part of the header."""
    if HEADER_PATTERN.fullmatch(header):
        Token.from_header(header)
        return
    with pytest.raises(
        UnauthenticatedError,
        match=r"^Authorization header must have the form: Bearer gw_<[a-z]+>_<client id>_<secret>$",
    ):
        Token.from_header(header)


@given(TOKENS, st.integers(min_value=0), st.characters())
def test_changing_one_character_changes_or_invalidates_the_token(token: Token, place: int, other: str) -> None:
    """No two texts are the same token."""
    text = f"Bearer {token.text}"
    place %= len(token.text)
    changed = text[: 7 + place] + other + text[8 + place :]
    try:
        parsed = Token.from_header(changed)
    except UnauthenticatedError:
        return
    assert (parsed.hash == token.hash) == (changed == text)


@pytest.mark.parametrize("extra", ["\n", " ", "\t", "\0", "x", ",", "=", "é"])
@pytest.mark.parametrize("before", [True, False])
def test_extra_characters_around_a_token_are_rejected(extra: str, before: bool) -> None:
    """This includes a line break at the end, which `$` in a regular expression would accept."""
    text = f"Bearer {Token.mint('dev', generate_client_id()).text}"
    with pytest.raises(UnauthenticatedError):
        Token.from_header(extra + text if before else text + extra)


def test_very_long_header_is_rejected() -> None:
    """Parsing takes linear time; with backtracking this test would not end."""
    for long in ("Bearer" + " " * 1_000_000, "Bearer gw_" + "a" * 1_000_000, "Bearer gw_" + "a_" * 500_000):
        with pytest.raises(UnauthenticatedError):
            Token.from_header(long)


def test_tokens_and_client_ids_are_unique() -> None:
    """Both come from the random source of the operating system; a secret has 256 bits."""
    minted = {Token.mint("dev", "0123456789ab").secret for _ in range(1000)}
    assert len(minted) == len({generate_client_id() for _ in range(1000)}) == 1000
    assert {len(secret) for secret in minted} == {43}
    assert {character for secret in minted for character in secret} == set(string.ascii_letters + string.digits)


def test_repr_and_hash_do_not_contain_the_secret() -> None:
    """Only `text` contains it."""
    token = Token.mint("dev", "0123456789ab")
    assert token.secret not in f"{token!r} {token} {token.hash}"
    assert token.text == f"gw_dev_0123456789ab_{token.secret}"
