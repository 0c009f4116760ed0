"""AWS clients for tools and tests, always directed at the local AWS: ministack or LocalStack.

Slow to import, because the SDK is slow to import. `make up` of the embedded stack does not use it (see `emulator`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from localstack_client.session import Session  # type: ignore[import-untyped]

from infra.local.servers.emulator import DEFAULT_ACCESS_KEY, REGION, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

# localstack-client prefers these to its argument, but the user may have set them for other programs.
_OVERRIDING_VARIABLES = ("AWS_ENDPOINT_URL", "USE_SSL")


def client(service: str, endpoint: str, access_key: str = DEFAULT_ACCESS_KEY) -> Any:
    """Return a client for a service of the local AWS at `endpoint`, an http:// address; ministack needs its key."""
    with _without_variables(_OVERRIDING_VARIABLES):
        session = Session(
            aws_access_key_id=access_key,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            localstack_host=urlsplit(endpoint).netloc,
        )
    return session.client(service)


@contextlib.contextmanager
def _without_variables(names: tuple[str, ...]) -> Iterator[None]:
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)
