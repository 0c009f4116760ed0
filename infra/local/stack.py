"""The whole stack of one state folder: its servers, its database and the deployed template."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from functools import cached_property
from typing import TYPE_CHECKING, Any

from infra.local import database
from infra.local.backing import Backing
from infra.local.deployment import STACK_NAME, Deployment
from infra.local.errors import LocalStackError
from infra.local.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.progress import Progress

HEALTH = "/v1/users/healthcheck/entitlements"
HEALTHY_WITHIN = 60.0
WORKERS = ("relay-outbox", "bridge-events", "deliver-notifications", "record-advisories", "sweep-retention")


class Stack(Backing):
    """PostgreSQL, NATS and the emulator with the deployed template.

    Any number of stacks run side by side, each in a folder of its own: the checkout's is `.grantwire`, tests
    use others. Template parameters and PostgreSQL settings given here are added to the usual ones.
    """

    def __init__(
        self,
        state: Path,
        *,
        progress: Progress | None = None,
        parameters: Mapping[str, str] | None = None,
        database_settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(state, progress=progress, database_settings=database_settings)
        self._parameters = dict(parameters or {})

    @property
    def database_url(self) -> str:
        """The address of the product's database."""
        return database.url(self.postgres)

    @property
    def nats_url(self) -> str:
        """The address of NATS."""
        return self.nats.url

    @property
    def emulator_url(self) -> str:
        """The address of the local AWS."""
        return self.emulator.url

    @property
    def api_url(self) -> str:
        """The address of the deployed API."""
        outputs = self.deployment.outputs()
        if "ApiId" not in outputs:
            raise LocalStackError("The stack is not deployed.", hint="Start it with `make up`.")
        return self.emulator.api_url(outputs["ApiId"], outputs["ApiStage"])

    @cached_property
    def deployment(self) -> Deployment:
        """The template on this stack's emulator; valid once the servers have their ports."""
        given = {
            "DatabaseUrl": self.database_url,
            "NatsUrl": self.nats_url,
            "Stage": "local",
            "InboxEnabled": "true",
        }
        return Deployment(self.state / "deployment", self.emulator, {**given, **self._parameters})

    def up(self) -> None:
        """Start what does not run, deploy what has changed, and return when the API answers."""
        with exclusive(self.state / "stack.lock", self.progress):
            self.start()
            with self.progress.step("Migrating the database"):
                database.create(self.postgres)
                database.migrate(self.postgres, self.state / "migrations")
            self._deploy()
            with self.progress.step("Waiting for the API"):
                self._await_healthy()
            self._start_workers()
            self._describe()

    def healthy(self) -> bool:
        """Tell whether the API answers from the database."""
        try:
            with urllib.request.urlopen(self.api_url + HEALTH, timeout=10) as answer:  # noqa: S310
                return bool(answer.status == 200)  # noqa: PLR2004
        except (OSError, LocalStackError):
            return False

    def _deploy(self) -> None:
        if self.deployment.current():
            return
        with self.progress.step("Building the functions"):
            self.deployment.build_functions()
        with self.progress.step("Deploying to the emulator"):
            self.deployment.deploy()

    def _start_workers(self) -> None:
        """Start each worker once: its schedule fires for the first time after a minute."""
        with self.progress.step("Starting the workers"):
            for name in WORKERS:
                self.emulator.invoke_later(f"{STACK_NAME}-{name}")

    def _await_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN
        while not self.healthy():
            if time.monotonic() > deadline:
                hint = "`make logs` shows what the functions wrote."
                raise LocalStackError("The API does not answer.", log=self.emulator.log, hint=hint)
            time.sleep(0.5)

    def _describe(self) -> None:
        """Write down what scripts need: for the owner's eyes only, and never half of it."""
        description: dict[str, Any] = {
            "api_url": self.api_url,
            "database_url": self.database_url,
            "nats_url": self.nats_url,
            "emulator_url": self.emulator_url,
            "token": "",
            "pids": {server.name: server.pid for server in self.servers},
        }
        fresh = self.description.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(description, file, indent=2)
        fresh.replace(self.description)
