"""X5: in the init phase a function reads its secret and connects; a failure there is left to the first request."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from grantwire.wiring.routes.authorize_caller import CallerRuntime
from grantwire.wiring.routes.entitlements import ApiRuntime
from grantwire.wiring.routes.operations import OperationsRuntime
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.waiting import until

if TYPE_CHECKING:
    import pytest

    from tests.integration.conftest import Rows
    from tests.support.secrets_manager import FakeSecretsManager

LAMBDA = {"AWS_LAMBDA_FUNCTION_NAME": "grant", "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand"}
_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@newest_postgres
def test_function_connects_in_the_init_phase(
    database_url: str, rows: Rows, secrets_manager: FakeSecretsManager
) -> None:
    """The first request of a route and of the authorizer finds an open connection; not in a snapshot or elsewhere."""
    arn = secrets_manager.store("early", database_url)
    environ = {**PLAINTEXT, "DATABASE_SECRET_ARN": arn, "TOKEN_ENVIRONMENT": "dev"}
    for runtime in (OperationsRuntime, CallerRuntime):
        for other in ({}, LAMBDA | {"AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start"}):
            runtime.build(environ | other)
            assert rows.execute(_SESSIONS).fetchall() == []
        with closing(runtime.build(environ | LAMBDA).database):
            assert len(rows.execute(_SESSIONS).fetchall()) == 1
            assert secrets_manager.requests == 1
        until("the session has ended", lambda: rows.execute(_SESSIONS).fetchall() == [])


def test_init_phase_succeeds_without_a_database(
    secrets_manager: FakeSecretsManager, capsys: pytest.CaptureFixture[str]
) -> None:
    """An init phase that fails would be repeated by Lambda, and callers would get 502 instead of 503."""
    arn = secrets_manager.store("late", "postgresql://u:s3cr3t@127.0.0.1:1/d")
    environ = {**PLAINTEXT, **LAMBDA, "DATABASE_SECRET_ARN": arn}
    ApiRuntime.build(environ)
    ApiRuntime.build(environ | {"DATABASE_SECRET_ARN": "arn:aws:secretsmanager:us-east-1:1:secret:none"})
    lines = capsys.readouterr().out
    assert lines.count("could not connect before the first request") == 2
    assert "s3cr3t" not in lines
