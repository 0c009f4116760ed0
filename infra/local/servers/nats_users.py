"""The users of NATS and the subjects that each may use: the only place where the permission lists are written.

The local servers are configured with these lists, docs/deploy.md prints them, and tests run the workers with them.
A user may publish and subscribe to the listed subjects and to nothing else. Responses arrive in an inbox whose prefix
only its user may subscribe to, so that no user can read the responses of another one.

Standard library only, like the other modules of the servers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORKERS = "grantwire-workers"
TOPOLOGY = "grantwire-topology"
FAULTS = "grantwire-faults"
INBOX_PREFIXES = {WORKERS: "_INBOX_WORKERS", TOPOLOGY: "_INBOX_TOPOLOGY"}
API = "$JS.API"
ADVISORIES = ("MAX_DELIVERIES", "MSG_TERMINATED")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of subject, streams and consumers; the defaults are those of template.yaml and of the settings.

    Each of `readers` is the name of a durable consumer and of the user of the system that reads with it. With `faults`,
    there is a user for `make fault`, which only a local stack has.
    """

    subject: str = "grantwire.entitlements.v1"
    stream: str = "ENTITLEMENTS"
    durable: str = "grantwire-bridge"
    advisory_stream: str = "ENTITLEMENTS_ADVISORIES"
    recorder_durables: tuple[str, str] = ("max-deliveries-recorder", "terminated-recorder")
    rebuild_consumers: tuple[str, ...] = ("grantwire-rebuild-1", "grantwire-rebuild-2")
    readers: tuple[str, ...] = ("reader",)
    faults: bool = False

    @property
    def consumers(self) -> list[tuple[str, str]]:
        """The streams and names of the workers' durable consumers."""
        return [(self.stream, self.durable), *((self.advisory_stream, name) for name in self.recorder_durables)]


@dataclass(frozen=True, slots=True)
class User:
    """A user of NATS, and the subjects that it may publish to."""

    name: str
    inbox_prefix: str
    publish: tuple[str, ...]


def list_users(names: Names) -> list[User]:
    """Return every user with its permissions."""
    return [
        User(WORKERS, INBOX_PREFIXES[WORKERS], tuple(_worker_subjects(names))),
        User(TOPOLOGY, INBOX_PREFIXES[TOPOLOGY], tuple(_topology_subjects(names))),
        *(User(name, inbox_prefix(name), tuple(_reader_subjects(names.stream, name))) for name in names.readers),
        *([User(FAULTS, inbox_prefix(FAULTS), tuple(_fault_subjects(names)))] if names.faults else []),
    ]


def inbox_prefix(user: str) -> str:
    """Return the prefix of the subjects on which a user receives responses."""
    return INBOX_PREFIXES.get(user, f"_INBOX_{user}")


def _worker_subjects(names: Names) -> Iterator[str]:
    """Yield the subjects of relay, bridge, recorder, redrive and rebuild."""
    yield names.subject
    for stream in (names.stream, names.advisory_stream):
        yield f"{API}.STREAM.INFO.{stream}"
    yield f"{API}.STREAM.MSG.GET.{names.stream}"  # the recorder copies the message of an advisory
    for stream, consumer in names.consumers:
        yield from _reader_subjects(stream, consumer)
    for consumer in names.rebuild_consumers:
        for action in ("CREATE", "MSG.NEXT", "DELETE"):  # a rebuild from the stream
            yield f"{API}.CONSUMER.{action}.{names.stream}.{consumer}"


def _topology_subjects(names: Names) -> Iterator[str]:
    """Yield the subjects of configure_streams."""
    for stream in (names.advisory_stream, names.stream):
        for action in ("INFO", "CREATE", "UPDATE"):
            yield f"{API}.STREAM.{action}.{stream}"
    for consumer in (names.durable, *names.readers):
        for action in ("INFO", "CREATE"):
            yield f"{API}.CONSUMER.{action}.{names.stream}.{consumer}"
    for kind, consumer in zip(ADVISORIES, names.recorder_durables, strict=True):
        yield f"{API}.CONSUMER.INFO.{names.advisory_stream}.{consumer}"
        filter_subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{names.stream}.{names.durable}"
        yield f"{API}.CONSUMER.CREATE.{names.advisory_stream}.{consumer}.{filter_subject}"


def _reader_subjects(stream: str, consumer: str) -> Iterator[str]:
    """Yield the subjects that one consumer needs to be read and acknowledged."""
    yield f"{API}.CONSUMER.INFO.{stream}.{consumer}"
    yield f"{API}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    yield f"$JS.ACK.{stream}.{consumer}.>"


def _fault_subjects(names: Names) -> Iterator[str]:
    """Yield the subjects of `make fault`: it pauses the bridge's consumer, and deletes a message."""
    yield f"{API}.CONSUMER.PAUSE.{names.stream}.{names.durable}"
    yield f"{API}.STREAM.MSG.DELETE.{names.stream}"


def render_users(names: Names, passwords: Mapping[str, str], *, indent: str = "") -> str:
    """Return the `users` list of a nats-server configuration."""
    lines = ["users: ["]
    for user in list_users(names):
        lines += [f"  {{ user: {_quote(user.name)}, password: {_quote(passwords[user.name])}, permissions: {{"]
        lines += ["    publish: { allow: ["]
        lines += [f"      {_quote(subject)}" for subject in user.publish]
        lines += ["    ] }", f"    subscribe: {{ allow: [{_quote(user.inbox_prefix + '.>')}] }}", "  } }"]
    return "".join(f"{indent}{line}\n" for line in [*lines, "]"])


def _quote(text: str) -> str:
    """Return a quoted text. nats-server does not accept the escapes of JSON for characters outside ASCII."""
    return json.dumps(text, ensure_ascii=False)


def render_account(names: Names, passwords: Mapping[str, str]) -> str:
    """Return an account for Grantwire alone, as docs/deploy.md prints it."""
    users = render_users(names, passwords, indent="    ")
    return f"accounts {{\n  GRANTWIRE {{\n    jetstream: enabled\n{users}  }}\n}}\n"
