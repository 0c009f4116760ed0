"""G2: the permission lists of NATS, which exist once."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import ADVISORY_SUBJECTS, TopologySettings
from grantwire.settings import variables
from infra.local.deployment.template import declared_parameters, function_variables, load_template
from infra.local.servers.nats import NatsUsers
from infra.local.servers.nats_users import (
    ADVISORIES,
    INBOX_PREFIXES,
    OWNER,
    TOPOLOGY,
    WORKERS,
    Names,
    list_users,
    render_accounts,
)
from infra.local.stack.streams import topology_variables
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_documented_configuration_is_the_generated_one() -> None:
    """G2: docs/deploy.md prints the lists that the local servers and the tests use."""
    names = Names()
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"```\n(accounts \{\n.*?)```\n", page, re.DOTALL)
    assert blocks == [render_accounts(names, {user.name: "…" for user in list_users(names)})]


def test_names_are_those_of_the_template_and_the_settings() -> None:
    """G2: the lists name what the deployed functions use."""
    names, parameters = Names(), declared_parameters()
    assert (names.subject, names.stream) == (parameters["EventSubject"], parameters["EventStream"])
    topology = topology_variables({})
    assert names.advisory_stream == topology["NOTIFICATION_NATS_ADVISORY_STREAM"]
    defaults = {variable.name: variable.default for variable in variables(TopologySettings)}
    assert names.durable == defaults["NOTIFICATION_NATS_DURABLE"]
    assert names.recorder_durables == (
        defaults["NOTIFICATION_NATS_ADVISORY_DURABLE"],
        defaults["NOTIFICATION_NATS_TERMINATED_ADVISORY_DURABLE"],
    )
    assert tuple(ADVISORY_SUBJECTS) == ADVISORIES


def test_each_function_uses_the_inbox_of_its_user() -> None:
    """G2: the default is that of the workers, and the template sets the other one."""
    defaults = {variable.name: variable.default for variable in variables(NatsSettings)}
    assert defaults["NATS_INBOX_PREFIX"] == INBOX_PREFIXES[WORKERS]
    prefixes = {
        name: environment.get("NATS_INBOX_PREFIX") for name, environment in function_variables(load_template()).items()
    }
    assert {name: prefix for name, prefix in prefixes.items() if prefix} == {
        "ConfigureStreamsFunction": INBOX_PREFIXES[TOPOLOGY]
    }


def test_no_inbox_contains_another() -> None:
    """G2: the permission on one inbox does not include the responses of another user."""
    users = list_users(Names(readers=("billing", "search")))
    assert len({user.inbox_prefix for user in users}) == len(users) == 4
    assert all("." not in user.inbox_prefix for user in users)


def test_only_the_topology_user_changes_streams() -> None:
    """G2: no user may purge or delete a stream, or use a wildcard except for acknowledgements."""
    for user in list_users(Names()):
        text = "\n".join(user.publish)
        assert not re.search(r"PURGE|STREAM\.DELETE|MSG\.DELETE|\*", text)
        assert bool(re.search(r"STREAM\.(CREATE|UPDATE)", text)) == (user.name == TOPOLOGY)
        assert all(subject.startswith("$JS.ACK.") for subject in user.publish if subject.endswith(">"))


def test_every_account_imports_what_its_user_may_publish_and_no_other_account_may() -> None:
    """G10: the account of the streams has no users. A subject of two users has one export for both."""
    users = list_users(Names(readers=("billing", "search"), faults=True))
    text = render_accounts(Names(readers=("billing", "search"), faults=True), {user.name: "…" for user in users})
    owner, *accounts = re.split(r"^  (?=\S+ \{$)", text, flags=re.MULTILINE)[1:]
    assert owner.startswith(f"{OWNER} {{")
    assert "users" not in owner
    exports = dict(re.findall(r'service: "(.+?)", (?:response: stream, )?accounts: \[(.+?)\]', owner))
    for user, account in zip(users, accounts, strict=True):
        assert account.startswith(f'"{user.name}" {{')
        assert tuple(re.findall(rf'account: {OWNER}, subject: "(.+?)"', account)) == user.publish
        assert {subject for subject, importers in exports.items() if f'"{user.name}"' in importers} == {*user.publish}
    pulls = re.findall(r'service: "(\S+)", response: stream', owner)
    assert {subject.rpartition(".")[2] for subject in pulls} >= {"billing", "search", "grantwire-bridge"}
    assert all(".MSG.NEXT." in subject for subject in pulls)


def test_passwords_are_random_and_kept(tmp_path: Path) -> None:
    """G2: each installation has its own, and a new reader does not change those of the others."""
    first = NatsUsers(tmp_path / "one", Names()).passwords
    assert len(set(first.values())) == len(first) == 3
    assert not set(first.values()) & set(NatsUsers(tmp_path / "two", Names()).passwords.values())
    more = NatsUsers(tmp_path / "one", dataclasses.replace(Names(), readers=("reader", "billing"))).passwords
    assert first.items() <= more.items()
    assert "billing" in more


def test_special_characters_are_quoted() -> None:
    """G2: a password cannot end its text, and keeps letters outside ASCII, which nats-server reads only as they are."""
    passwords = {user.name: 'a"b\\cö' for user in list_users(Names())}
    assert r'password: "a\"b\\cö"' in render_accounts(Names(), passwords)
