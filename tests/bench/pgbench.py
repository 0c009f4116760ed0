"""pgbench, PostgreSQL's own load generator, as the upper limit for a client."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.fleet import Run

if TYPE_CHECKING:
    from tests.bench.servers import Servers


def run_pgbench(servers: Servers, database: str, script: str, *, clients: int, seconds: float) -> Run:
    """Let clients repeat a script with prepared statements; `seconds` is rounded to whole seconds, at least one."""
    with tempfile.TemporaryDirectory(prefix="grantwire-pgbench-") as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script)
        command = [str(servers.binary("pgbench")), "--no-vacuum", "--protocol=prepared", "--file", str(file)]
        load = ["--client", str(clients), "--jobs", str(min(2, clients)), "--time", str(max(1, round(seconds)))]
        log = ["--log", "--log-prefix", str(Path(folder) / "log")]
        result = subprocess.run([*command, *load, *log, database], capture_output=True, text=True, check=False, env={})
        if result.returncode or "number of failed transactions: 0 " not in result.stdout:
            raise RuntimeError(f"pgbench failed: {result.stderr or result.stdout}")
        calls = re.search(r"transactions actually processed: (\d+)", result.stdout)
        rate = re.search(r"^tps = ([\d.]+) \(without", result.stdout, re.MULTILINE)
        if calls is None or rate is None:
            raise RuntimeError(f"cannot parse the output of pgbench: {result.stdout}")
        # The third column of the log is the latency in microseconds.
        latencies = [
            int(line.split()[2]) / 1e6 for part in Path(folder).glob("log*") for line in part.read_text().splitlines()
        ]
        return Run(int(calls[1]), int(calls[1]) / float(rate[1]), latencies)
