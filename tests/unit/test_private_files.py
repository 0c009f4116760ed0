"""Files that hold secrets or process ids: whole or not there, and for their owner alone."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from infra.local.system import files
from infra.local.system.processes import Account

if TYPE_CHECKING:
    from pathlib import Path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_private_whatever_the_umask_and_whatever_was_there(tmp_path: Path) -> None:
    """An open file from before, and one that an interrupted write left, give nothing away."""
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


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """Whoever has the older one open goes on reading it: the file is replaced, not changed."""
    path = tmp_path / "record.json"
    files.write_record(path, {"port": 1})
    with path.open() as reader:
        files.write_record(path, {"port": 2})
        assert '"port": 1' in reader.read()
    assert files.read_record(path) == {"port": 2}


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """Somebody could have made one where the new file is written first."""
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "token"
    elsewhere.write_text("mine")
    (tmp_path / "token.new").symlink_to(elsewhere)
    files.write_private(path, "secret")
    assert (elsewhere.read_text(), path.read_text(), path.is_symlink()) == ("mine", "secret", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_can_be_another_account_s(tmp_path: Path) -> None:
    """As the password is that `initdb` reads."""
    files.write_private(tmp_path / "password", "secret", owner=Account(65534, 65534))
    found = (tmp_path / "password").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65534, 0o600)


@pytest.mark.parametrize("fails", [False, True])
def test_a_private_file_is_gone_at_the_end(fails: bool, tmp_path: Path) -> None:
    """Also when what it was needed for failed, or has removed it already."""
    expected = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with expected, files.private_file(tmp_path / "parameters", "secret") as path:
        assert (path.read_text(), _mode(path)) == ("secret", 0o600)
        _ = 1 / (not fails)
        path.unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]", "\udcff"])
def test_what_cannot_be_read_as_a_record_is_an_empty_one(text: str | None, tmp_path: Path) -> None:
    """A server whose record is lost is a server that does not run."""
    if text is not None:
        (tmp_path / "record.json").write_bytes(text.encode(errors="surrogateescape"))
    assert files.read_record(tmp_path / "record.json") == {}
