"""The schema as one file to read: what all migrations together make, in pg_dump's words."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# pg_dump words the same schema differently in each major version; the file is in this one's words.
MAJOR = 18

_NOISE = re.compile(r"--|SET |SELECT pg_catalog\.set_config|\\|$")


def dump_schema(binaries: Path, url: str) -> str:
    """The schema of a migrated database, without what differs from run to run: comments and the months' partitions."""
    command: list[str | Path] = [
        binaries / "pg_dump",
        "--schema-only",
        "--no-owner",
        "--exclude-table=entitlement_audit_y*",
        url,
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in text.splitlines() if not _NOISE.match(line)) + "\n"
