"""The state of an installation from two sources: its operations API, and the processes of a local stack.

Each source may fail alone. The result says which part does not respond, and has what the other one knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_cli.api import DEFAULT_TIMEOUT_SECONDS, Api
from grantwire_cli.errors import CommandError, ExitCode, UnavailableError

if TYPE_CHECKING:
    from grantwire_cli.checkout import Checkout
    from grantwire_cli.session import Session
    from grantwire_cli.target import Target

STATUS = "/v1/ops/status"
# While the state is shown again and again.
WATCH_TIMEOUT_SECONDS = 5.0
# For the servers of a local stack; one of them may hang.
LOCAL_TIMEOUT_SECONDS = 15.0
WITHOUT_POSTGRESQL = "Nothing that was confirmed is lost. A request can be repeated with the same key. Workers wait."
WITHOUT_API = "The workers do not need the API: events are published, and notifications are sent."


@dataclass(frozen=True)
class Health:
    """What is known: the report of the operations API or its error, and the local processes if there are any."""

    title: str
    report: dict[str, Any] | None = None
    local: dict[str, Any] | None = None
    error: CommandError | None = None

    @property
    def exit_code(self) -> ExitCode:
        """OK, NEGATIVE if something needs a person, or the exit code of the error."""
        if self.report is None:
            return self.error.exit_code if self.error else ExitCode.UNAVAILABLE
        servers_run = self.local is None or all(server["alive"] for server in self.local["servers"])
        return ExitCode.OK if self.report["state"] == "OK" and servers_run else ExitCode.NEGATIVE

    def as_dict(self) -> dict[str, Any]:
        """Return the state for --json."""
        error = self.error
        return {
            "installation": self.title,
            "status": self.report,
            "local": self.local,
            "error": {"code": error.code, "message": str(error), "hint": error.hint or None} if error else None,
        }


def read_health(session: Session, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Health:
    """Return the state of the session's installation; `timeout` is for a session that has none.

    Raises CommandError if no installation is selected, and not because one does not respond.
    """
    try:
        target = session.target
    except CommandError as error:
        if error.code != "NO_INSTALLATION":
            raise
        return Health("the local stack", local=_local_state(session.checkout), error=error)
    local = _local_state(target.checkout) if target.checkout else None
    try:
        return Health(target.title, report=_report(session, target, timeout), local=local)
    except CommandError as error:
        return Health(target.title, local=local, error=_explain(error, is_local=local is not None))


def _explain(error: CommandError, *, is_local: bool) -> CommandError:
    """Return an error that names the part that is away, what still works, and what to try other than `status`."""
    repair = "grantwire up; then grantwire doctor" if is_local else "the section Database down of docs/runbook.md"
    if error.code == "UNAVAILABLE":
        hint = f"still works  {WITHOUT_POSTGRESQL}\ntry          {repair}"
        message = "The API responds, but PostgreSQL is away or too slow."
        return UnavailableError(message, hint=hint, code="DATABASE_UNAVAILABLE")
    if error.code == "NO_RESPONSE":
        works = "" if is_local else f"still works  {WITHOUT_API}\n"  # the workers of a local stack run in its emulator
        to_do = repair if is_local else error.hint
        return UnavailableError(str(error), hint=f"{works}try          {to_do}", code=error.code)
    return error


def _report(session: Session, target: Target, timeout: float) -> dict[str, Any]:
    api = Api(target, timeout=timeout if session.options.timeout is None else session.options.timeout)
    try:
        report: dict[str, Any] = api.get(STATUS)
        return report
    finally:
        api.close()


def _local_state(checkout: Checkout) -> dict[str, Any] | None:
    try:
        return checkout.query("state", timeout=LOCAL_TIMEOUT_SECONDS)
    except CommandError:
        return None
