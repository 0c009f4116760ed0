"""What a process on this machine is told about servers on this machine: that they speak without TLS."""

from __future__ import annotations

PLAINTEXT = {"DATABASE_TLS": "off", "NATS_TLS": "off", "PLAINTEXT_ALLOWED": "true"}
