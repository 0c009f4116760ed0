"""What a process on this machine is told about servers on this machine: that they speak without TLS."""

from __future__ import annotations

from infra.local.layer import PLAINTEXT

__all__ = ["PLAINTEXT"]
