"""Environment variables that let a process connect to servers on this machine without TLS."""

from __future__ import annotations

from infra.local.layer import PLAINTEXT

__all__ = ["PLAINTEXT"]
