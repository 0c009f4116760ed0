"""Converts errors of nats-py to errors of Grantwire."""

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
    """Convert errors of nats-py inside the block to RetryableError; the original error is its cause."""
    try:
        yield
    except APIError as error:
        raise RetryableError(f"JetStream: {error.description or error!r}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise RetryableError(f"NATS: {error!r}") from error


def to_connect_error(error: Exception) -> RetryableError:
    """Return the error for a failed connection attempt, with advice if TLS is the cause."""
    return RetryableError(f"NATS is unreachable: {error!r}{_tls_advice(error)}")


def _tls_advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:
            return "; connect to a host name that the server's certificate contains"
        return "; NATS_TLS_CA must contain the authority that signed the server's certificate"
    return "; does the server support TLS on this port?" if isinstance(error, ssl.SSLError) else ""
