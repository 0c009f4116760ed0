"""`make logs`: the last lines of all logs, including those of the functions."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME
from infra.local.paths import STATE
from infra.local.progress import tail
from infra.local.stack import selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

DEFAULT_LINES = 10
LOG_GROUP_PREFIX = f"/aws/lambda/{STACK_NAME}"


def logs(arguments: Sequence[str], progress: Progress) -> int:
    """Print the path and the last lines of each log; with --follow, also new lines until interrupted."""
    parser = argparse.ArgumentParser(prog="infra.local logs")
    parser.add_argument("--follow", "-f", action="store_true", help="print new lines until interrupted")
    parser.add_argument(
        "--lines", "-n", type=int, default=DEFAULT_LINES, help="number of lines of each log (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    files = sorted(STATE.glob("*.log")) + sorted(STATE.glob("*/*.log"))
    for file in files:
        progress.print_line(f"== {file}")
        for line in tail(file, options.lines):
            progress.print_line(line)
    functions = FunctionLogs(selection.current_stack(progress))
    for line in functions.new_lines(options.lines):
        progress.print_line(line)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how to end it
            _follow(files, functions, progress)
    return 0


class FunctionLogs:
    """The logs of the deployed functions, which the local AWS keeps as CloudWatch does."""

    def __init__(self, stack: DeployedStack) -> None:
        self._is_running = stack.aws.is_alive()
        self._client = aws.client("logs", stack.emulator_url, stack.aws.access_key)
        self._seen: dict[str, int] = {}

    def new_lines(self, limit: int | None = None) -> list[str]:
        """Return the lines since the last call; with `limit`, only the newest of each function, with its title."""
        if not self._is_running:
            return []
        try:
            groups = self._client.describe_log_groups(logGroupNamePrefix=LOG_GROUP_PREFIX)["logGroups"]
            return [line for group in groups for line in self._group_lines(group["logGroupName"], limit)]
        except (BotoCoreError, ClientError):
            return []

    def _group_lines(self, group: str, limit: int | None) -> list[str]:
        events = self._client.filter_log_events(logGroupName=group)["events"]
        new_events = events[self._seen.get(group, 0) :][-(limit or len(events)) :]
        self._seen[group] = len(events)
        title = [f"== {group}"] if limit else []
        return title + [f"{group.rpartition('/')[2]}: {event['message'].rstrip()}" for event in new_events]


def _follow(files: Sequence[Path], functions: FunctionLogs, progress: Progress) -> None:
    offsets = {file: file.stat().st_size for file in files}
    while True:
        time.sleep(1)
        for file, offset in offsets.items():
            with file.open("rb") as log:
                log.seek(offset)
                text = log.read().decode(errors="replace")
                offsets[file] = log.tell()
            for line in text.splitlines():
                progress.print_line(f"{file.stem}: {line}")
        for line in functions.new_lines():
            progress.print_line(line)
