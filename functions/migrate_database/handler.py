"""Migrate the database to the schema that this function was built with."""

from collections.abc import Mapping
from typing import Any

from grantwire.database import connect
from grantwire.database.migrations import apply, read_schema
from grantwire.retention.partitions import limit_audit_retention
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.migrate_database import MigrationRuntime


def handle(_event: Mapping[str, Any], rt: MigrationRuntime, _source: str) -> dict[str, Any]:
    """Apply the missing migrations and the changed functions, and store the minimum retention of the audit."""
    with connect(rt.database, application_name="grantwire-migrate") as connection:
        applied = apply(connection, read_schema())
        limit_audit_retention(connection, rt.audit_months)
    return {"applied": applied}


handler = TaskHandler("migrate_database", MigrationRuntime.build, handle)
