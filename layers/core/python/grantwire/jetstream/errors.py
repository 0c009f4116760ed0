"""The one place that knows the errors of nats-py."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import nats.errors
from nats.js.errors import APIError

from grantwire.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def wrap_exceptions() -> Iterator[None]:
    """Raise what nats-py raises as RetryableError; the original is its cause."""
    try:
        yield
    except APIError as error:
        raise RetryableError(f"JetStream: {error.description or error!r}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise RetryableError(f"NATS: {error!r}") from error


def unreachable(error: Exception) -> RetryableError:
    """The error of a connection that could not be made, with advice where TLS is the reason."""
    return RetryableError(f"NATS is unreachable: {error!r}{_advice(error)}")


def _advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:
            return "; connect by a name that the server's certificate holds"
        return "; NATS_TLS_CA must hold the authority that signed the server's certificate"
    return "; does this port speak TLS?" if isinstance(error, ssl.SSLError) else ""
