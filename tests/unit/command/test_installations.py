from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from grantwire_cli.checkout import find_checkout
from grantwire_cli.errors import AccessError
from grantwire_cli.target import Selection, resolve_target
from tests.support.fake_api import TOKEN, FakeApi

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

LIST = ("entitlements", "list", "u_1")


@pytest.fixture
def checkout(home: Path, api: FakeApi) -> Path:
    """A checkout whose stack is up."""
    folder = home / "checkout"
    (folder / "infra" / "local").mkdir(parents=True)
    (folder / "infra" / "local" / "__main__.py").touch()
    (folder / "template.yaml").touch()
    (folder / ".grantwire").mkdir()
    description = folder / ".grantwire" / "stack.json"
    description.write_text(json.dumps({"api_url": api.url, "token": TOKEN}))
    description.chmod(0o600)
    return folder


def set_profile(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, url: str, token: str) -> Result:
    """Create a profile, with the token on standard input."""
    reading, writing = os.pipe()
    os.write(writing, f"{token}\n".encode())
    os.close(writing)
    with os.fdopen(reading) as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        return run("config", "set", name, "--api", url, "--token-stdin", "--json")


def test_local_stack_of_the_checkout_is_the_default(
    run: Run, api: FakeApi, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: it is found from a folder inside the checkout, or with --checkout."""
    monkeypatch.chdir(checkout / "infra" / "local")
    assert run(*LIST).code == 0
    monkeypatch.chdir("/")
    assert run(*LIST).code == 1
    assert run(*LIST, "--checkout", str(checkout)).code == 0
    assert run("--checkout", str(checkout), *LIST).code == 0
    assert len(api.calls) == 3


def test_variables_of_make_env_select_the_local_stack(
    api: FakeApi, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: the address alone is that of the stack, in every folder; that of another installation is not."""
    monkeypatch.setenv("GRANTWIRE_API", api.url)
    monkeypatch.setenv("GRANTWIRE_TOKEN", TOKEN)
    assert resolve_target(Selection(), os.environ).checkout is None
    monkeypatch.setenv("GRANTWIRE_CHECKOUT", str(checkout))
    target = resolve_target(Selection(), os.environ)
    assert (target.title, target.checkout) == ("the local stack", find_checkout(checkout))
    monkeypatch.setenv("GRANTWIRE_API", "http://127.0.0.1:9")
    assert resolve_target(Selection(), os.environ).checkout is None


def test_profile_is_used_and_can_be_chosen(
    run: Run, api: FakeApi, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: options come before variables, then the current profile, then the local stack."""
    created = set_profile(run, monkeypatch, "prod", api.url, TOKEN)
    assert created.json["token"] == "(set)"
    assert run(*LIST, "--profile", "prod").code == 0
    assert run(*LIST).code == 1
    assert run("config", "use", "prod").code == 0
    assert run(*LIST).code == 0
    monkeypatch.setenv("GRANTWIRE_API", "http://127.0.0.1:9")
    monkeypatch.setenv("GRANTWIRE_TOKEN", "other")
    assert run(*LIST, "--timeout", "0").code == 3
    assert run(*LIST, "--profile", "prod").code == 0
    assert run(*LIST, "--checkout", str(checkout)).code == 0
    assert run(*LIST, "--profile", "prod", "--checkout", str(checkout)).code == 2
    assert run(*LIST, "--profile", "unknown").code == 1


def test_option_after_the_command_replaces_the_one_before(run: Run, api: FakeApi, checkout: Path) -> None:
    """T3: the nearer selection wins, so that an alias with --profile can be overridden."""
    assert run("--profile", "unknown", *LIST, "--checkout", str(checkout)).code == 0
    assert len(api.calls) == 1


def test_config_file_is_private_and_a_readable_one_is_refused(
    run: Run, api: FakeApi, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: the token is in a file of mode 0600 and in no output; a file that others can read is not used."""
    created = set_profile(run, monkeypatch, "prod", api.url, TOKEN)
    path = home / "config" / "grantwire" / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listed = run("config", "list")
    assert "prod" in listed.out
    assert TOKEN not in created.out + created.err + listed.out + listed.err
    path.chmod(0o640)
    refused = run(*LIST, "--profile", "prod", "--json")
    assert (refused.code, refused.error["code"]) == (4, "UNSAFE_FILE")
    assert "chmod 600" in refused.error["hint"]
    assert api.calls == []


def test_readable_description_of_a_stack_is_refused(run: Run, api: FakeApi, checkout: Path) -> None:
    """T3: stack.json has a token too."""
    (checkout / ".grantwire" / "stack.json").chmod(0o644)
    assert run(*LIST, "--checkout", str(checkout)).code == 4
    assert api.calls == []


def test_checkout_of_another_account_is_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: its code would run as the caller."""
    monkeypatch.setattr("os.geteuid", lambda: checkout.stat().st_uid + 1)
    if checkout.stat().st_uid == 0:
        os.chown(checkout / "infra" / "local" / "__main__.py", 12345, -1)
    with pytest.raises(AccessError, match="belongs to another account"):
        find_checkout(checkout)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://api.example.com/prod", 4),
        ("ftp://127.0.0.1/", 1),
        ("api.example.com", 1),
        ("http://127.0.0.1.example.com", 4),
    ],
)
def test_token_is_not_sent_in_clear_text(run: Run, monkeypatch: pytest.MonkeyPatch, url: str, code: int) -> None:
    """T3: http:// is for this machine only."""
    monkeypatch.setenv("GRANTWIRE_TOKEN", TOKEN)
    assert run(*LIST, "--api", url).code == code


def test_missing_token_says_where_to_put_it(run: Run, api: FakeApi) -> None:
    """T3: exit code 4, before a request is sent."""
    result = run(*LIST, "--api", api.url, "--json")
    assert (result.code, result.error["code"]) == (4, "UNAUTHENTICATED")
    assert "GRANTWIRE_TOKEN" in result.error["hint"]
    assert api.calls == []


@pytest.mark.parametrize(
    "text", ["current = 1", "x = 1", "[profiles.a]\nurl = 'x'", "[profiles.a]\napi = 1", "not toml", "\x00"]
)
def test_invalid_config_file_is_explained(run: Run, home: Path, text: str) -> None:
    """T3: the message names the file, without a traceback."""
    path = home / "config" / "grantwire" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
    result = run(*LIST)
    assert result.code == 1
    assert str(path) in result.err
    assert "Traceback" not in result.err


def test_removed_profile_is_gone(run: Run, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: it asks first; the current profile is no longer chosen."""
    set_profile(run, monkeypatch, "prod", api.url, TOKEN)
    run("config", "use", "prod")
    assert run("config", "remove", "prod").code == 2
    assert run("config", "remove", "prod", "--yes").code == 0
    assert run("config", "list", "--json").json["profiles"] == []
    assert run(*LIST).code == 1
    assert run("config", "set", "../x", "--api", "https://a.example").code == 1
