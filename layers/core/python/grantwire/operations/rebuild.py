"""Executes rebuilds and verifications of the read model, one batch at a time (P2, T1)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from grantwire.operations.command_store import FINISHED, BatchOutcome
from grantwire.operator_actions import OperatorAction, record_rebuild
from grantwire.read_model.from_record import MAX_PASSES, RecordRebuildReport, compare, repair_pass, repair_summaries
from grantwire.read_model.from_stream import StreamRebuildReport, project_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Database
    from grantwire.operations.command_store import ClaimedCommand, Fence
    from grantwire.read_model.from_stream import EventStream


class RebuildExecutor:
    """Rebuilds the read model from the system of record, or from the stream."""

    def __init__(self, database: Database, stream: EventStream) -> None:
        self._database = database
        self._stream = stream

    def execute_batch(self, claimed: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Execute one pass over the system of record, or project the next messages of the stream."""
        command = claimed.command.rebuild()
        if command.source == "record":
            return self._repair(claimed, fence)
        if claimed.result is None:
            return self._project(claimed, fence, self._stream.begin(command.from_sequence))
        return self._project(claimed, fence, StreamRebuildReport.from_dict(claimed.result))

    def _repair(self, claimed: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Repair all rows that differ; after the last pass, also the counts of users."""
        passes = int(claimed.position or 0)
        report = _read_report(claimed.result)
        with self._database.session() as tx, tx.transaction():
            before = report.repaired + report.removed
            repair_pass(tx, report, _to_action(claimed, {"source": "record"}), fence.begin(tx))
            changed = report.repaired + report.removed - before
            outcome = fence.end(tx, BatchOutcome(str(passes + 1), changed, changed, result=report.as_dict()))
        if not report.complete and passes + 1 < MAX_PASSES:
            return outcome
        repair_summaries(self._database, report)
        with self._database.session() as tx, tx.transaction():
            return fence.end(tx, BatchOutcome(FINISHED, result=report.as_dict()))

    def _project(self, claimed: ClaimedCommand, fence: Fence, report: StreamRebuildReport) -> BatchOutcome:
        events = [] if report.complete else self._stream.read(report)
        selection = {"source": "stream", "stream": self._stream.name, "from_sequence": report.from_sequence}
        with self._database.session() as tx, tx.transaction():
            changed = 0
            if events:
                changed = project_events(tx, events, report)
                record_rebuild(tx, _to_action(claimed, selection), fence.begin(tx), changed)
            position = FINISHED if report.complete else str(report.reached)
            return fence.end(tx, BatchOutcome(position, len(events), changed, result=report.as_dict()))


class VerifyExecutor:
    """Compares the read model with the system of record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute_batch(self, _claimed: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Count the differences with one statement."""
        result = compare(self._database).as_dict()
        with self._database.session() as tx, tx.transaction():
            return fence.end(tx, BatchOutcome(FINISHED, result=result))


def _to_action(claimed: ClaimedCommand, selection: Mapping[str, Any]) -> OperatorAction:
    return OperatorAction(claimed.command.operator, "rebuild", "read_model", selection, action_id=claimed.command_id)


def _read_report(result: Mapping[str, Any] | None) -> RecordRebuildReport:
    """Return the report of the passes before."""
    report = RecordRebuildReport(dry_run=False, complete=False)
    if result is not None:
        report.differences = Counter(result["found"])
        report.repaired, report.removed = result["repaired"], result["removed"]
    return report
