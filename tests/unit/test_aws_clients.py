"""The AWS clients of tools and tests, which must use the local AWS."""

from __future__ import annotations

import os

import pytest

from infra.local.deployment import aws


def test_client_uses_the_given_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's variables for other programs have no effect, and keep their values."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:1")
    monkeypatch.setenv("LOCALSTACK_HOST", "elsewhere:2")
    monkeypatch.setenv("USE_SSL", "1")
    client = aws.client("lambda", "http://127.0.0.1:4599")
    assert client.meta.endpoint_url == "http://127.0.0.1:4599"
    assert client.meta.region_name == "us-east-1"
    assert (os.environ["AWS_ENDPOINT_URL"], os.environ["USE_SSL"]) == ("http://elsewhere:1", "1")


@pytest.mark.parametrize("service", ["cloudformation", "lambda", "logs", "s3", "sns", "sqs"])
def test_every_used_service_is_supported(service: str) -> None:
    """localstack-client has its own list of services."""
    assert aws.client(service, "http://127.0.0.1:4566").meta.service_model.service_name == service
