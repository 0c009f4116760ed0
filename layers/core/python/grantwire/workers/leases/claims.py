"""Who has claimed what, and the check that it is still so."""

from __future__ import annotations

import socket
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grantwire.errors import LeaseLostError
from grantwire.observability import MetricUnit, log, metrics

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of one worker; `token` is what the rows carry in `locked_by`."""

    worker: str
    token: str = field(init=False)

    def __post_init__(self) -> None:
        """The host's name alone would not tell two workers apart, nor two claims of one worker."""
        object.__setattr__(self, "token", f"{self.worker}/{uuid.uuid4()}")


def worker_name(environ: Mapping[str, str]) -> str:
    """What people look for in `locked_by`: the Lambda log stream, else HOSTNAME, else the host's name."""
    return environ.get("AWS_LAMBDA_LOG_STREAM_NAME") or environ.get("HOSTNAME") or socket.gethostname()


def fence(changed: int, expected: int, what: str) -> None:
    """Stop a worker whose lease ran out before its change arrived."""
    if changed < expected:
        metrics.add_metric("LeasesLost", MetricUnit.Count, expected - changed)
        log.error("lease lost", what=what, expected=expected, changed=changed)
        raise LeaseLostError(f"{what}: {changed} of {expected} rows were still ours")
