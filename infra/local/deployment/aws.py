"""AWS clients for tools and tests: the one place that decides where they lead, to ministack or to LocalStack.

Slow to import, as the SDK is: `make up` of the embedded stack does without (see `emulator`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from localstack_client.session import Session  # type: ignore[import-untyped]

from infra.local.servers.emulator import CREDENTIALS, REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

# localstack-client prefers these to the address that it is given; a person may have set them for something else.
_ELSEWHERE = ("AWS_ENDPOINT_URL", "USE_SSL")


def client(service: str, endpoint: str) -> Any:
    """A client of one service of the local AWS at `endpoint`, an http:// address."""
    with _without(_ELSEWHERE):
        session = Session(
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
            localstack_host=urlsplit(endpoint).netloc,
        )
    return session.client(service)


@contextlib.contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)
