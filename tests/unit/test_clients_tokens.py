"""Tokens: what is one, what is none, and that none shows its secret."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.clients.tokens import Token, new_client_id
from grantwire.errors import UnauthenticatedError

ENVIRONMENTS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=16)
CLIENT_IDS = st.text(string.ascii_lowercase + string.digits, min_size=12, max_size=12)
SECRETS = st.text(string.ascii_letters + string.digits, min_size=43, max_size=43)
TOKENS = st.builds(Token, ENVIRONMENTS, CLIENT_IDS, SECRETS)
FORM = re.compile(r"[Bb]earer +gw_[a-z0-9]{1,16}_[a-z0-9]{12}_[A-Za-z0-9]{43}", re.ASCII)


@given(TOKENS, st.sampled_from(["Bearer ", "bearer ", "Bearer    "]))
def test_a_token_is_read_as_it_was_written(token: Token, scheme: str) -> None:
    """Nothing is lost between the text that a client keeps and what is judged."""
    read = Token.of_header(scheme + token.text)
    assert (read.environment, read.client_id, read.secret) == (token.environment, token.client_id, token.secret)
    assert read.hash == token.hash


@given(st.one_of(st.text(), st.from_regex(r"(Bearer )?gw_[\w\s]*_[\w\s]*_[\w\s]*", fullmatch=True)))
def test_whatever_else_is_sent_is_refused_without_repeating_it(header: str) -> None:
    """E5: a token or a refusal, nothing in between; the refusal has nothing of what was sent."""
    if FORM.fullmatch(header):
        Token.of_header(header)
        return
    with pytest.raises(UnauthenticatedError, match=r"^send Authorization: Bearer gw_…$"):
        Token.of_header(header)


@given(TOKENS, st.integers(min_value=0), st.characters())
def test_a_token_with_one_other_character_is_another_token_or_none(token: Token, place: int, other: str) -> None:
    """No two texts stand for one token."""
    text = f"Bearer {token.text}"
    place %= len(token.text)
    changed = text[: 7 + place] + other + text[8 + place :]
    try:
        read = Token.of_header(changed)
    except UnauthenticatedError:
        return
    assert (read.hash == token.hash) == (changed == text)


@pytest.mark.parametrize("extra", ["\n", " ", "\t", "\0", "x", ",", "=", "é"])
@pytest.mark.parametrize("before", [True, False])
def test_nothing_stands_around_a_token(extra: str, before: bool) -> None:
    """Also no line break at the end, which `$` of many expressions lets pass."""
    text = f"Bearer {Token.mint('dev', new_client_id()).text}"
    with pytest.raises(UnauthenticatedError):
        Token.of_header(extra + text if before else text + extra)


def test_a_very_long_header_is_refused() -> None:
    """In time that grows with its length and no faster: this would not end otherwise."""
    for long in ("Bearer" + " " * 1_000_000, "Bearer gw_" + "a" * 1_000_000, "Bearer gw_" + "a_" * 500_000):
        with pytest.raises(UnauthenticatedError):
            Token.of_header(long)


def test_tokens_and_ids_are_never_the_same_twice() -> None:
    """Each from the system's own randomness: 256 bits for a secret."""
    minted = {Token.mint("dev", "0123456789ab").secret for _ in range(1000)}
    assert len(minted) == len({new_client_id() for _ in range(1000)}) == 1000
    assert {len(secret) for secret in minted} == {43}
    assert {character for secret in minted for character in secret} == set(string.ascii_letters + string.digits)


def test_a_token_does_not_show_its_secret() -> None:
    """Neither printed nor formatted; only its text has it."""
    token = Token.mint("dev", "0123456789ab")
    assert token.secret not in f"{token!r} {token} {token.hash}"
    assert token.text == f"gw_dev_0123456789ab_{token.secret}"
