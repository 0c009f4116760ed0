"""G5: the URL and the keys of a webhook, from a secret or from settings."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from grantwire.errors import ConfigError
from grantwire.notifications.senders import SenderSettings
from grantwire.notifications.senders.endpoint import SecretEndpoint, parse_webhook_secret
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.deliver_receiver import KEY, NEW_KEY

URL = "https://receiver.example/hook?token=hunter2"
SECRET = {"url": URL, "keys": [KEY]}
ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:webhook"


def key_of(size: int) -> str:
    """Return a key with this number of bytes."""
    return "whsec_" + base64.b64encode(b"k" * size).decode()


INVALID: list[dict[str, Any]] = [
    {"url": None},
    {"url": "hunter2"},
    {"url": "https://u:hunter2@receiver.example/"},
    {"url": "http://receiver.example/?hunter2"},
    {"keys": []},
    {"keys": KEY},
    {"keys": {KEY: 1}},
    {"keys": [1]},
    {"keys": ["hunter2"]},
    {"keys": ["whsec_hunter2"]},
    {"keys": ["whsec_" + "hunter2!" * 4]},
    {"keys": ["whsec_" + "é" * 32]},
    {"keys": [KEY.removeprefix("whsec_")]},
    {"keys": [key_of(23)]},
    {"keys": [key_of(65)]},
    {"keys": [KEY, NEW_KEY, KEY]},
]


@pytest.mark.parametrize("keys", [[KEY], [KEY, NEW_KEY], [key_of(24)], [key_of(64)], [KEY.rstrip("=")]])
def test_secret_has_one_key_or_two_keys(keys: list[str]) -> None:
    """G5: of the sizes that Standard Webhooks allows, with or without padding."""
    endpoint = parse_webhook_secret(json.dumps(SECRET | {"keys": keys}), plaintext_allowed=False)
    assert (endpoint.url, endpoint.keys) == (URL, tuple(keys))


@pytest.mark.parametrize(
    "secret",
    [
        "",
        URL,
        "[]",
        "{}",
        "null",
        *(json.dumps(SECRET | change) for change in INVALID),
    ],
)
def test_invalid_secret_is_not_quoted_in_the_error(secret: str) -> None:
    """G5: clear-text addresses and weak keys are refused; the error is logged, so it must not contain the secret."""
    with pytest.raises(ConfigError, match="the webhook secret must be JSON with url, an https:// URL") as caught:
        parse_webhook_secret(secret, plaintext_allowed=False)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_local_stage_accepts_a_clear_text_address() -> None:
    """G5: for a receiver on the same machine."""
    secret = json.dumps(SECRET | {"url": "http://127.0.0.1:1/"})
    assert parse_webhook_secret(secret, plaintext_allowed=True).url == "http://127.0.0.1:1/"


def test_repr_hides_address_and_keys() -> None:
    """They appear neither in settings nor in an endpoint that is part of an error."""
    endpoint = parse_webhook_secret(json.dumps(SECRET), plaintext_allowed=False)
    environ = {**PLAINTEXT, "NOTIFICATION_WEBHOOK_URL": URL, "NOTIFICATION_WEBHOOK_KEYS": KEY}
    text = repr([endpoint, load(SenderSettings, environ)])
    assert "hunter2" not in text
    assert KEY not in text


WEBHOOK = {"NOTIFICATION_SENDER": "webhook"}
LOCAL = {"NOTIFICATION_WEBHOOK_URL": "http://127.0.0.1:1/", "NOTIFICATION_WEBHOOK_KEYS": KEY}


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "exactly one of NOTIFICATION_WEBHOOK_SECRET_ARN and NOTIFICATION_WEBHOOK_URL"),
        ({**PLAINTEXT, **LOCAL, "NOTIFICATION_WEBHOOK_SECRET_ARN": ARN}, "exactly one of"),
        ({**PLAINTEXT, **LOCAL, "NOTIFICATION_WEBHOOK_KEYS": ""}, "NOTIFICATION_WEBHOOK_KEYS must be set"),
        ({"NOTIFICATION_WEBHOOK_SECRET_ARN": ARN, "NOTIFICATION_WEBHOOK_KEYS": KEY}, "NOTIFICATION_WEBHOOK_KEYS"),
        (LOCAL, "NOTIFICATION_WEBHOOK_URL needs PLAINTEXT_ALLOWED=true"),
        ({**LOCAL, "NOTIFICATION_WEBHOOK_URL": URL}, "NOTIFICATION_WEBHOOK_URL needs PLAINTEXT_ALLOWED=true"),
        ({**PLAINTEXT, **LOCAL, "NOTIFICATION_WEBHOOK_KEYS": "hunter2"}, "NOTIFICATION_WEBHOOK_KEYS must be one key"),
    ],
)
def test_contradictory_settings_are_a_config_error(environ: dict[str, str], problem: str) -> None:
    """G5: keys are required, and outside the local stage they come from Secrets Manager, like the address."""
    with pytest.raises(ConfigError, match=problem) as caught:
        load(SenderSettings, WEBHOOK | environ)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("environ", [{"NOTIFICATION_WEBHOOK_SECRET_ARN": ARN}, {**PLAINTEXT, **LOCAL}])
def test_secret_or_local_settings_are_accepted(environ: dict[str, str]) -> None:
    """G5: one of the two."""
    load(SenderSettings, WEBHOOK | environ)


class FakeCache:
    """A cache of secrets that returns what the test says."""

    def __init__(self) -> None:
        self.text = json.dumps(SECRET)
        self.rejected: list[str] = []

    def get(self, _arn: str) -> str:
        """Return the text."""
        return self.text

    def refresh(self, _arn: str, *, rejected: str) -> str | None:
        """Return the text if it differs."""
        self.rejected.append(rejected)
        return None if rejected == self.text else self.text


def test_refresh_compares_the_text_of_the_secret() -> None:
    """G5: the cache decides whether the secret has changed since the endpoint was read."""
    cache: Any = FakeCache()
    source = SecretEndpoint(ARN, plaintext_allowed=False, cache=cache)
    first = source.read()
    assert source.refresh(first) is None
    before, cache.text = cache.text, json.dumps(SECRET | {"keys": [NEW_KEY]})
    renewed = source.refresh(first)
    assert renewed is not None
    assert renewed.keys == (NEW_KEY,)
    assert cache.rejected == [before, before]
