"""`make logs`: the ends of all logs, the functions' included."""

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
from infra.local.stack import kinds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

LINES = 10
GROUPS = f"/aws/lambda/{STACK_NAME}"


def logs(arguments: Sequence[str], progress: Progress) -> int:
    """Show where each log is and how it ends, and go on with --follow."""
    parser = argparse.ArgumentParser(prog="infra.local logs")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until interrupted")
    parser.add_argument("--lines", "-n", type=int, default=LINES, help="how many lines of each")
    options = parser.parse_args(arguments)
    files = sorted(STATE.glob("*.log")) + sorted(STATE.glob("*/*.log"))
    for file in files:
        progress.say(f"== {file}")
        for line in tail(file, options.lines):
            progress.say(line)
    functions = FunctionLogs(kinds.current(progress))
    for line in functions.new_lines(options.lines):
        progress.say(line)
    if options.follow:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            _follow(files, functions, progress)
    return 0


class FunctionLogs:
    """What the deployed functions wrote, which the emulator keeps as CloudWatch would."""

    def __init__(self, stack: DeployedStack) -> None:
        self._running = stack.aws.alive()
        self._client = aws.client("logs", stack.emulator_url)
        self._seen: dict[str, int] = {}

    def new_lines(self, most: int | None = None) -> list[str]:
        """Give the lines since the last call, the newest `most` of each function at the first."""
        if not self._running:
            return []
        try:
            groups = self._client.describe_log_groups(logGroupNamePrefix=GROUPS)["logGroups"]
            return [line for group in groups for line in self._lines_of(group["logGroupName"], most)]
        except (BotoCoreError, ClientError):
            return []

    def _lines_of(self, group: str, most: int | None) -> list[str]:
        events = self._client.filter_log_events(logGroupName=group)["events"]
        fresh = events[self._seen.get(group, 0) :][-(most or len(events)) :]
        self._seen[group] = len(events)
        title = [f"== {group}"] if most else []
        return title + [f"{group.rpartition('/')[2]}: {event['message'].rstrip()}" for event in fresh]


def _follow(files: Sequence[Path], functions: FunctionLogs, progress: Progress) -> None:
    places = {file: file.stat().st_size for file in files}
    while True:
        time.sleep(1)
        for file, place in places.items():
            with file.open("rb") as log:
                log.seek(place)
                text = log.read().decode(errors="replace")
                places[file] = log.tell()
            for line in text.splitlines():
                progress.say(f"{file.stem}: {line}")
        for line in functions.new_lines():
            progress.say(line)
