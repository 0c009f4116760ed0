"""`grantwire whoami`: the client of the token, and what is wrong with it."""

import typer

from grantwire_cli.errors import AccessError, ExitCode
from grantwire_cli.registry import register
from grantwire_cli.session import Session
from grantwire_cli.times import human_time

ME = "/v1/me"
REPAIRS = {
    "EXPIRED": "Ask for a rotation with --expires-in, of this client or of the one above it.",
    "REVOKED": "This is final: ask for a new client.",
}


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    register(app, "whoami", "grantwire whoami", "grantwire --profile prod whoami --json")(whoami)


def whoami(session: Session) -> int:
    """Show the client of your token: its name, scopes, state and expiry. It needs no scope.

    The exit code is 4 if the client has expired or was revoked, or if the token is wrong.
    """
    try:
        found = session.api.get(ME)
    except AccessError as error:
        hint = (
            "The installation does not know this token: it is mistyped, of another installation, or was replaced by a"
            " rotation whose overlap has ended."
        )
        raise AccessError(str(error), hint=hint, code=error.code) from error
    session.output.record({**found, "scopes": " ".join(found["scopes"])} if not session.output.as_json else found)
    end = found["token_expires_at"]
    if found["state"] != "ACTIVE":
        session.warn(f"The client is {found['state']}. {REPAIRS[found['state']]}")
        return ExitCode.NO_ACCESS
    if end != found["expires_at"]:
        session.warn(f"This token was replaced by a rotation, and ends at {human_time(end)}. Use the new one.")
    return ExitCode.OK
