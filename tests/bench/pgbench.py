"""pgbench: as fast as this PostgreSQL answers a client that does nothing but ask."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.fleet import Run

if TYPE_CHECKING:
    from tests.bench.servers import Servers


def pgbench(servers: Servers, database: str, script: str, *, clients: int, seconds: float) -> Run:
    """Let so many clients repeat a script, its statements prepared, for so long (whole seconds)."""
    with tempfile.TemporaryDirectory(prefix="grantwire-pgbench-") as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script)
        command = [str(servers.binary("pgbench")), "--no-vacuum", "--protocol=prepared", "--file", str(file)]
        load = ["--client", str(clients), "--jobs", str(min(2, clients)), "--time", str(max(1, round(seconds)))]
        log = ["--log", "--log-prefix", str(Path(folder) / "log")]
        done = subprocess.run([*command, *load, *log, database], capture_output=True, text=True, check=False, env={})
        if done.returncode or "number of failed transactions: 0 " not in done.stdout:
            raise RuntimeError(f"pgbench failed: {done.stderr or done.stdout}")
        calls = re.search(r"transactions actually processed: (\d+)", done.stdout)
        rate = re.search(r"^tps = ([\d.]+) \(without", done.stdout, re.MULTILINE)
        if calls is None or rate is None:
            raise RuntimeError(f"pgbench says something new: {done.stdout}")
        # Third of each line: how long the transaction took, in microseconds.
        latencies = [
            int(line.split()[2]) / 1e6 for part in Path(folder).glob("log*") for line in part.read_text().splitlines()
        ]
        return Run(int(calls[1]), int(calls[1]) / float(rate[1]), latencies)
