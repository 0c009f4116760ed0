"""Files with secrets or process ids: replaced atomically, and readable by their owner only."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from infra.local.servers.emulator import EmulatorServer
from infra.local.servers.nats import NatsUsers
from infra.local.servers.nats_users import Names
from infra.local.system import files
from infra.local.system.processes import Account

if TYPE_CHECKING:
    from pathlib import Path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_file_ignores_the_umask_and_an_existing_file(tmp_path: Path) -> None:
    """Neither a readable older file nor the rest of an interrupted write exposes the new content."""
    path = tmp_path / "token"
    path.write_text("older")
    path.chmod(0o644)
    (tmp_path / "token.new").write_text("half")
    before = os.umask(0)
    try:
        files.write_private(path, "secret")
    finally:
        os.umask(before)
    assert (path.read_text(), _mode(path)) == ("secret", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_reader_never_sees_an_incomplete_file(tmp_path: Path) -> None:
    """An open reader still reads the older file, because a file is replaced and not changed."""
    path = tmp_path / "record.json"
    files.write_record(path, {"port": 1})
    with path.open() as reader:
        files.write_record(path, {"port": 2})
        assert '"port": 1' in reader.read()
    assert files.read_record(path) == {"port": 2}


def test_symbolic_link_at_the_new_file_is_not_followed(tmp_path: Path) -> None:
    """Another account could create a link at the path where the new file is first written."""
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "token"
    elsewhere.write_text("mine")
    (tmp_path / "token.new").symlink_to(elsewhere)
    files.write_private(path, "secret")
    assert (elsewhere.read_text(), path.read_text(), path.is_symlink()) == ("mine", "secret", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_private_file_can_belong_to_another_account(tmp_path: Path) -> None:
    """`initdb` reads the password in such a file."""
    files.write_private(tmp_path / "password", "secret", owner=Account(65534, 65534))
    status = (tmp_path / "password").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (65534, 65534, 0o600)


def test_open_folder_and_open_log_become_private(tmp_path: Path) -> None:
    """G9: also those that an older version created, and whatever the umask is."""
    folder, log = tmp_path / "state", tmp_path / "server.log"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    log.write_text("older")
    log.chmod(0o644)
    before = os.umask(0)
    try:
        files.make_private_folder(folder)
        files.make_private_folder(tmp_path / "new")
        for path in (log, tmp_path / "new.log"):
            files.open_log(path).close()
    finally:
        os.umask(before)
    assert [_mode(path) for path in (folder, tmp_path / "new")] == [0o700, 0o700]
    assert [_mode(path) for path in (log, tmp_path / "new.log")] == [0o600, 0o600]


def test_passwords_of_nats_are_private(tmp_path: Path) -> None:
    """G9: in the record of the users, and in the configuration of the server."""
    before = os.umask(0)
    try:
        NatsUsers(tmp_path, Names()).write()
    finally:
        os.umask(before)
    assert {path.name: _mode(path) for path in tmp_path.iterdir()} == {"nats.conf": 0o600, "users.json": 0o600}


def test_access_key_of_the_emulator_is_private(tmp_path: Path) -> None:
    """G9: it is random, kept over a restart, and in a folder that only its owner can enter."""
    before = os.umask(0)
    try:
        keys = {EmulatorServer(tmp_path / name).access_key for name in ("one", "two", "one")}
    finally:
        os.umask(before)
    assert [len(key) for key in keys] == [32, 32]
    assert (_mode(tmp_path / "one"), _mode(tmp_path / "one" / "access-key")) == (0o700, 0o600)


@pytest.mark.parametrize("fails", [False, True])
def test_private_file_is_deleted_at_the_end(fails: bool, tmp_path: Path) -> None:
    """It is also deleted if the block fails, and the block may delete it itself."""
    expected = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with expected, files.private_file(tmp_path / "parameters", "secret") as path:
        assert (path.read_text(), _mode(path)) == ("secret", 0o600)
        _ = 1 / (not fails)
        path.unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]", "\udcff"])
def test_unreadable_record_is_empty(text: str | None, tmp_path: Path) -> None:
    """A server with a lost record counts as not running."""
    if text is not None:
        (tmp_path / "record.json").write_bytes(text.encode(errors="surrogateescape"))
    assert files.read_record(tmp_path / "record.json") == {}
