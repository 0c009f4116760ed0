"""The tests of SQL on every installed PostgreSQL but the newest, for `make check`; `make test` uses the newest one."""

from __future__ import annotations

import subprocess
import sys

from tests.support.servers import clusters

if __name__ == "__main__":
    older = list(clusters())[1:]
    if not older:
        sys.exit(0)
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-k", " or ".join(older)], check=False).returncode)
