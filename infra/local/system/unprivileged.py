"""Where a server may live that refuses to run as root.

As root, PostgreSQL runs as `nobody`. A checkout below a private folder (a home of mode 0700) is out of that
account's reach; then binaries and data go to one folder of this checkout under /var/tmp. Opening up the
folders above the checkout would be simpler and is not ours to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT
from infra.local.system.processes import Account


def account() -> Account | None:
    """Give the account to run as: none, that is ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def reachable(path: Path) -> bool:
    """Tell whether an account without privileges can get to a path, or to as much of it as exists."""
    resolved = path.resolve()
    folders = (folder for folder in (resolved, *resolved.parents) if folder.exists())
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def outside() -> Path:
    """Name this checkout's folder under /var/tmp; it exists only if it was needed."""
    return Path("/var/tmp") / f"grantwire-{digest(CHECKOUT)}"  # noqa: S108  # made by `_make_outside` only


def data_folder(state: Path) -> Path:
    """Name the folder for the data of the server with this state folder."""
    if account() is None:
        return state
    return state / "files" if reachable(state) else outside() / digest(state)


def make_data_folder(state: Path) -> None:
    """Make that folder, for the account that the server runs as."""
    owner, folder = account(), data_folder(state)
    if owner is None:
        return
    if folder.parent == outside():
        _make_outside()
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, owner.uid, owner.gid)


def installed(binaries: Path, version: str) -> Path:
    """Give a folder of binaries that the account can run: this one, or one in a copy of the installation."""
    if account() is None or reachable(binaries):
        return binaries
    copy = _make_outside() / f"postgresql-{version}"
    if not copy.exists():
        fresh = copy.with_name(f"{copy.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        _copy_installation(binaries.parent, fresh)
        _open_to_read(fresh)
        fresh.rename(copy)
    return copy / binaries.relative_to(binaries.parents[2])


def remove_data(folder: Path) -> None:
    """Delete what `make_data_folder` made, and the folder under /var/tmp with the last of them."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent == outside():
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def remove_outside() -> None:
    """Delete this checkout's folder under /var/tmp."""
    if outside().is_dir() and outside().lstat().st_uid == os.geteuid():
        shutil.rmtree(outside())


def _make_outside() -> Path:
    """Make the folder; everyone may write to /var/tmp, so refuse one that somebody else made."""
    folder = outside()
    folder.mkdir(mode=0o711, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        hint = "Look at it, and remove it if you can."
        raise CommandError(f"{folder} belongs to somebody else.", hint=hint)
    folder.chmod(0o711)
    return folder


def _copy_installation(source: Path, target: Path) -> None:
    """Copy an installation, and the libraries that a wheel keeps in a folder beside its package."""
    package = source.parent
    shutil.copytree(
        source, target / package.name / source.name, symlinks=True, ignore=shutil.ignore_patterns("include")
    )
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)


def _open_to_read(folder: Path) -> None:
    """Let everyone read a copy whose original was installed under a private umask."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))


def digest(path: Path) -> str:
    """A short name for a path that no other path has."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
