"""The users of NATS, their accounts, and the subjects that each may use: the only place where these lists are written.

The local servers are configured with these lists, docs/deploy.md prints them, and tests run the workers with them.

The streams are in the account OWNER, which has no users. Each user has an account of its own, which imports exactly the
subjects that the user may publish to. NATS does not check the reply subject of a request, and JetStream responds there
with the rights of the server; from an account of its own, a response reaches nothing of the account OWNER (G10). In
its account, a user may publish and subscribe to the listed subjects and to nothing else, so that a missing entry is an
error that names the subject.

An account without JetStream responds to requests below API itself, that it has none. So each account maps them to other
subjects, and imports these. Clients notice nothing.

Standard library only, like the other modules of the servers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OWNER = "GRANTWIRE"  # storage belongs to an account: the streams of a renamed one are gone
WORKERS = "grantwire-workers"
TOPOLOGY = "grantwire-topology"
FAULTS = "grantwire-faults"
INBOX_PREFIXES = {WORKERS: "_INBOX_WORKERS", TOPOLOGY: "_INBOX_TOPOLOGY"}
API = "$JS.API"
MAPPED_API = "GRANTWIRE.API"
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
    readers: tuple[str, ...] = ("reader",)
    faults: bool = False

    @property
    def consumers(self) -> list[tuple[str, str]]:
        """The streams and names of the workers' durable consumers."""
        return [(self.stream, self.durable), *((self.advisory_stream, name) for name in self.recorder_durables)]


@dataclass(frozen=True, slots=True)
class User:
    """A user of NATS, whose account has the same name, and the subjects that it may publish to."""

    name: str
    inbox_prefix: str
    publish: tuple[str, ...]


def list_users(names: Names) -> list[User]:
    """Return every user with its permissions."""
    subjects = {
        WORKERS: _worker_subjects(names),
        TOPOLOGY: _topology_subjects(names),
        **{name: _reader_subjects(names.stream, name) for name in names.readers},
        **({FAULTS: _fault_subjects(names)} if names.faults else {}),
    }
    return [User(name, inbox_prefix(name), tuple(dict.fromkeys(allowed))) for name, allowed in subjects.items()]


def inbox_prefix(user: str) -> str:
    """Return the prefix of the subjects on which a user receives responses."""
    return INBOX_PREFIXES.get(user, f"_INBOX_{user}")


def map_subject(subject: str) -> str:
    """Return the subject of a request in the account of a user, as permissions and errors name it."""
    return MAPPED_API + subject.removeprefix(API) if subject.startswith(f"{API}.") else subject


def _worker_subjects(names: Names) -> Iterator[str]:
    """Yield the subjects of relay, bridge, recorder, redrive and rebuild."""
    yield names.subject
    for stream in (names.stream, names.advisory_stream):
        yield f"{API}.STREAM.INFO.{stream}"
    yield f"{API}.STREAM.MSG.GET.{names.stream}"  # the recorder copies the message of an advisory; a rebuild reads all
    for stream, consumer in names.consumers:
        yield from _reader_subjects(stream, consumer)


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


def render_accounts(names: Names, passwords: Mapping[str, str], *, administrator: str = "") -> str:
    """Return the accounts of a nats-server configuration, as docs/deploy.md prints them.

    `administrator` is an unrestricted user of the account OWNER.
    """
    users = list_users(names)
    lines = ["accounts {", f"  {OWNER} {{", "    jetstream: enabled"]
    if administrator:
        lines.append(f"    users: [{{ user: {_quote(administrator)}, password: {_quote(passwords[administrator])} }}]")
    lines += ["    exports: [", *_export_lines(users), "    ]", "  }"]
    for user in users:
        mapping = f"    mappings: {{ {_quote(f'{API}.>')}: {_quote(f'{MAPPED_API}.>')} }}"
        lines += [f"  {_quote(user.name)} {{", mapping, "    imports: [", *map(_to_import, user.publish), "    ]"]
        lines += [*_user_lines(user, passwords), "  }"]
    return "\n".join([*lines, "}", ""])


def _to_import(subject: str) -> str:
    mapped = map_subject(subject)
    target = "" if mapped == subject else f", to: {_quote(mapped)}"
    return f"      {{ service: {{ account: {OWNER}, subject: {_quote(subject)} }}{target} }}"


def _user_lines(user: User, passwords: Mapping[str, str]) -> Iterator[str]:
    yield f"    users: [{{ user: {_quote(user.name)}, password: {_quote(passwords[user.name])}, permissions: {{"
    yield "      publish: { allow: ["
    yield from (f"        {_quote(map_subject(subject))}" for subject in user.publish)
    yield "      ] }"
    yield f"      subscribe: {{ allow: [{_quote(user.inbox_prefix + '.>')}] }}"
    yield "    } }]"


def _export_lines(users: Sequence[User]) -> Iterator[str]:
    """Yield one export for each subject, for the accounts that import it and for no other account."""
    for subject in dict.fromkeys(subject for user in users for subject in user.publish):
        accounts = ", ".join(_quote(user.name) for user in users if subject in user.publish)
        response = "response: stream, " if is_pull(subject) else ""
        yield f"      {{ service: {_quote(subject)}, {response}accounts: [{accounts}] }}"


def is_pull(subject: str) -> bool:
    """Return whether a request to this subject gets several responses: the messages of a consumer."""
    return subject.startswith(f"{API}.CONSUMER.MSG.NEXT.")


def _quote(text: str) -> str:
    """Return a quoted text. nats-server does not accept the escapes of JSON for characters outside ASCII."""
    return json.dumps(text, ensure_ascii=False)
