"""A NATS server with the users of a deployment, and the environments of these users.

Every integration test runs the workers with the permissions of the workers. Streams and consumers have random names in
tests, so the lists have wildcards instead of names; `tests/integration/test_nats_permissions.py` tests the lists of a
deployment. A test that looks behind the scenes connects as ADMIN, which may do everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from grantwire.wiring.tasks.configure_streams import ConfigurationRuntime
from infra.local.servers.nats import NatsServer, NatsUsers
from infra.local.servers.nats_users import TOPOLOGY, WORKERS, Names, inbox_prefix, render_accounts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ADMIN = "admin"
READER = "reader"
# The names of tests.support.workers.relay_support.worker_environ.
TEST_NAMES = Names(subject="entitlements.*", stream="*", durable="bridge", advisory_stream="*", readers=(READER,))


class UsersWithAdmin(NatsUsers):
    """The users of a deployment and ADMIN, all with the same password, so that a test can change the user of a URL."""

    @property
    def passwords(self) -> dict[str, str]:
        """The password of each user."""
        passwords = super().passwords
        return dict.fromkeys([*passwords, ADMIN], passwords[WORKERS])

    def accounts(self) -> str:
        """Return the accounts of a deployment, with ADMIN in that of the streams."""
        return render_accounts(self.names, self.passwords, administrator=ADMIN)


class NatsWithUsers(NatsServer):
    """A NATS server for tests."""

    def __init__(self, state: Path, names: Names = TEST_NAMES) -> None:
        super().__init__(state, names=names)
        self.users = UsersWithAdmin(self.state, names)

    def login(self, user: str) -> dict[str, Any]:
        """Return the options with which nats-py connects as one user."""
        return {"servers": self.url_for(user)}

    def write_to_disk(self, sync_interval: str) -> None:
        """Write messages to the disk at this interval from the next start on; `always`: before the acknowledgement."""
        self.users = UsersWithAdmin(self.state, self.users.names, sync_interval=sync_interval)


def url_for(url: str, user: str) -> str:
    """Return the address of the same server for another user; unchanged if the server has no such users."""
    parts = urlsplit(url)
    if parts.username != WORKERS:
        return url
    return urlunsplit(parts._replace(netloc=f"{user}:{parts.password}@{parts.netloc.rpartition('@')[2]}"))


def as_user(environ: Mapping[str, str], user: str) -> dict[str, str]:
    """Return the same environment for another user."""
    return {**environ, "NATS_URL": url_for(environ["NATS_URL"], user), "NATS_INBOX_PREFIX": inbox_prefix(user)}


def as_admin(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the same environment for a user without restrictions."""
    return as_user(environ, ADMIN)


def configure(environ: Mapping[str, str]) -> dict[str, Any]:
    """Create or update the streams and consumers of an environment, as a deployment does; return the changes."""
    return ConfigurationRuntime.build(as_user(environ, TOPOLOGY)).configure()


def configured(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment after its streams and consumers were created."""
    configure(environ)
    return environ
