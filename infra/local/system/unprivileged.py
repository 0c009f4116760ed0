"""The account and the folders of a server that refuses to run as root.

If this process is root, PostgreSQL runs as `nobody`. That account cannot enter a checkout below a private folder, for
example a home directory of mode 0700. Binaries and data then go to this checkout's folder below /var/tmp. The
permissions of the folders above the checkout are never changed, because they belong to the user.
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
from infra.local.system import files
from infra.local.system.processes import Account


def account() -> Account | None:
    """Return the account to run servers as, or None for the current account if it is not root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def enterable_mode() -> int:
    """Return the mode of a folder that contains a server's: only root's can be entered, but not read, by others."""
    return files.PRIVATE_FOLDER if account() is None else 0o711


def is_reachable(path: Path) -> bool:
    """Return whether an unprivileged account can enter a path, or the part of it that exists."""
    resolved = path.resolve()
    folders = (folder for folder in (resolved, *resolved.parents) if folder.exists())
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def external_folder() -> Path:
    """Return the path of this checkout's folder below /var/tmp. It exists only if it was needed."""
    return Path("/var/tmp") / f"grantwire-{digest(CHECKOUT)}"  # noqa: S108  # only `_create_external_folder` creates it


def data_folder(state: Path) -> Path:
    """Return the path of the data folder of the server with this state folder."""
    if account() is None:
        return state
    return state / "files" if is_reachable(state) else external_folder() / digest(state)


def create_data_folder(state: Path) -> None:
    """Create the server's data folder, owned by the account that the server runs as."""
    owner, folder = account(), data_folder(state)
    if owner is None:
        return
    if folder.parent == external_folder():
        _create_external_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, owner.uid, owner.gid)


def accessible_binaries(binaries: Path, version: str) -> Path:
    """Return a folder of binaries that the server's account can run: this one, or a copy of it."""
    if account() is None or is_reachable(binaries):
        return binaries
    copy = _create_external_folder() / f"postgresql-{version}"
    if not copy.exists():
        incomplete = copy.with_name(f"{copy.name}.new")
        shutil.rmtree(incomplete, ignore_errors=True)
        _copy_installation(binaries.parent, incomplete)
        _make_readable(incomplete)
        incomplete.rename(copy)
    return copy / binaries.relative_to(binaries.parents[2])


def remove_data(folder: Path) -> None:
    """Delete a folder of `create_data_folder`, and the folder below /var/tmp if it is then empty."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent == external_folder():
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def remove_external_folder() -> None:
    """Delete this checkout's folder below /var/tmp."""
    if external_folder().is_dir() and external_folder().lstat().st_uid == os.geteuid():
        shutil.rmtree(external_folder())


def _create_external_folder() -> Path:
    """Create this checkout's folder below /var/tmp.

    Raises CommandError if another account created it: every account may write to /var/tmp.
    """
    folder = external_folder()
    folder.mkdir(mode=0o711, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0:
        hint = "Inspect it, and remove it if it is not needed."
        raise CommandError(f"{folder} belongs to another account.", hint=hint)
    folder.chmod(0o711)
    return folder


def _copy_installation(source: Path, target: Path) -> None:
    """Copy an installation, and the libraries that a wheel keeps in a folder next to its package."""
    package = source.parent
    shutil.copytree(
        source, target / package.name / source.name, symlinks=True, ignore=shutil.ignore_patterns("include")
    )
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)


def _make_readable(folder: Path) -> None:
    """Make a copy readable for every account; the original may have been installed with a private umask."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))


def digest(path: Path) -> str:
    """Return a short name that is unique to a path."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
