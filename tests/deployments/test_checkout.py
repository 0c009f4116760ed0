"""S4, J5: `make up` in a copy of the checkout, as a new user has it, and again after a change of a route.

The copy is in a folder with a blank in its name and belongs to an ordinary account. HOME is empty.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.http import Http
from tests.support.environments import find_python
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDINARY_ACCOUNT = 65534
# Settings of the package index, which may be those of a company.
INHERITED_PREFIXES = ("PIP_", "UV_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
VERSIONS = ("3.13", "3.14", "3.12", "3.11")


class Copy:
    """A copy of the checkout, and the commands that its user runs in it."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.python = python
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._account = {"user": ORDINARY_ACCOUNT, "group": ORDINARY_ACCOUNT, "extra_groups": []}

    def fill(self) -> None:
        """Copy the files of the checkout that git knows or would add."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)
        if self._account:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, ORDINARY_ACCOUNT, ORDINARY_ACCOUNT, follow_symlinks=False)

    def run(self, *command: str | Path, path: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the user of the copy, with this PATH."""
        inherited = {name: value for name, value in os.environ.items() if name.upper().startswith(INHERITED_PREFIXES)}
        environment = {**inherited, "HOME": "", "PATH": path}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, **self._account
        )

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace a text in one of its files."""
        file = self.folder / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def description(self) -> dict[str, Any]:
        """Return stack.json."""
        content: dict[str, Any] = json.loads((self.folder / ".grantwire" / "stack.json").read_text())
        return content


@pytest.fixture
def copy() -> Iterator[Copy]:
    """A copy below the system's temporary directory, which every account can reach; its servers are stopped."""
    found = [shutil.which(f"python{version}", path=os.defpath) or find_python(version) for version in VERSIONS]
    paths = [Path(python).resolve() for python in found if python]
    python = next((path for path in paths if is_reachable(path)), None)
    if python is None:
        pytest.skip("an ordinary account can reach no Python")
    with tempfile.TemporaryDirectory(prefix="grantwire copy ", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        copy = Copy(Path(parent) / "my checkout", python)
        copy.fill()
        try:
            yield copy
        finally:
            copy.run(python, "-m", "infra.local", "clean", path=os.defpath)


def is_reachable(path: Path) -> bool:
    """Return whether every account can run a program."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


@pytest.mark.timeout(1800)
def test_stack_starts_for_a_new_user_and_again_after_a_change_of_a_route(copy: Copy) -> None:
    """S4, J5: the data is kept, and the API has the same address. Without make, a sentence says what to install."""
    command = (copy.python, "-m", "infra.local", "up")
    refused = copy.run(*command, path="/nonexistent")
    assert refused.returncode == 1
    assert "`make` is not on the PATH" in refused.stderr + refused.stdout
    assert "apt install make" in refused.stderr + refused.stdout
    assert "Traceback" not in refused.stderr

    started = copy.run("make", f"PYTHON={copy.python}", "up", path=os.defpath)
    assert started.returncode == 0, started.stdout + started.stderr
    before = copy.description()
    http = Http(before["api_url"], before["token"])
    assert http.grant("key-1", user_id="u_1").status == 200
    assert http.send("GET", "/console").status == 200

    copy.replace("template.yaml", "Path: /console,", "Path: /desk,")
    copy.replace("functions/console/handler.py", '"GET /console"', '"GET /desk"')
    copy.replace("layers/core/python/grantwire/clients/scopes.py", '"GET /console"', '"GET /desk"')
    changed = copy.run(*command, path=os.defpath)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert copy.description()["api_url"] == before["api_url"]
    assert (http.send("GET", "/desk").status, http.send("GET", "/console").status) == (200, 404)
    assert http.grant("key-1", user_id="u_1").replayed
