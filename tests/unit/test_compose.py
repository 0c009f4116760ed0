"""infra/compose.yaml, and what `make up STACK=localstack` does with it, up to the `docker` program."""

from __future__ import annotations

import json
import re
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.commands import down
from infra.local.containers import compose
from infra.local.containers.compose import FILE, LICENSED_IMAGE, Compose
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.stack import database, selection
from infra.local.stack.localstack import LocalStackStack

if TYPE_CHECKING:
    from pathlib import Path

PROJECT: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = PROJECT["services"]
PINNED = re.compile(r"[a-z0-9/-]+:\d+(\.\d+)+(-[a-z0-9]+)?")

# Stands for Docker: writes down how it was called, and answers what a running project would.
DOCKER = """#!{python}
import json, os, sys
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    print(json.dumps([words, dict(os.environ)]), file=calls)
if words[0] == os.environ.get("FAKE_DOCKER_FAILS") or words[:2] == ["compose", os.environ.get("FAKE_COMPOSE_FAILS")]:
    sys.exit(1)
if "ps" in words:
    print("postgres\\nlocalstack")
if "port" in words:
    print("127.0.0.1:4" + words[-1])
"""


class FakeDocker:
    """A `docker` on PATH."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        program = folder / "docker"
        program.write_text(DOCKER.format(python=sys.executable, calls=str(self._calls)))
        program.chmod(0o755)

    @property
    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """Each call: words and environment."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [(words, environment) for words, environment in map(json.loads, lines)]

    def actions(self) -> list[list[str]]:
        """What each call of `docker compose` asked of the project."""
        return [words[words.index(str(FILE)) + 1 :] for words, _ in self.calls if str(FILE) in words]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """Docker as this test has it, and nothing that a person has set."""
    for name in ("DOCKER_HOST", "LOCALSTACK_AUTH_TOKEN", "LOCALSTACK_IMAGE", "GRANTWIRE_API_PORT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return FakeDocker(folder)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_watched_and_reached_from_this_machine_only(name: str) -> None:
    """No moving tags; `up --wait` needs a health check; a port without an address would be open to the network."""
    service = SERVICES[name]
    default = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(.+)\}", service["image"])
    assert default is not None
    assert PINNED.fullmatch(default[1])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= service["healthcheck"].keys()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_licensed_image_is_pinned_too() -> None:
    """It stands in the program, because the file cannot choose."""
    assert PINNED.fullmatch(LICENSED_IMAGE)


def test_functions_find_postgres_and_nats_by_name() -> None:
    """LocalStack puts their containers on the project's own network, and has the engine's socket to do so."""
    localstack = SERVICES["localstack"]
    assert localstack["environment"]["LAMBDA_DOCKER_NETWORK"] == "${COMPOSE_PROJECT_NAME}_default"
    assert not any("networks" in service for service in SERVICES.values())
    socket = "${GRANTWIRE_DOCKER_SOCKET:-/var/run/docker.sock}:/var/run/docker.sock"
    assert [name for name, service in SERVICES.items() if socket in service["volumes"]] == ["localstack"]


def test_the_same_port_inside_and_outside() -> None:
    """SAM hands CloudFormation an address that must mean the same to LocalStack."""
    port = "${GRANTWIRE_API_PORT:-4566}"
    assert SERVICES["localstack"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert SERVICES["localstack"]["environment"]["GATEWAY_LISTEN"] == f"0.0.0.0:{port}"


def test_data_are_kept_in_volumes_that_are_declared() -> None:
    """`make down` removes containers, not data."""
    named = {volume.split(":")[0] for one in SERVICES.values() for volume in one["volumes"] if volume[0] not in "$/."}
    assert named == set(PROJECT["volumes"]) == set(SERVICES)


def test_up_waits_for_health_and_down_keeps_the_data(docker: FakeDocker, tmp_path: Path) -> None:
    """The two commands that matter, in the words that docker gets."""
    project = Compose(tmp_path / "state")
    project.up()
    assert project.may_have_containers()
    project.down()
    assert not project.may_have_containers()
    project.down(volumes=True)
    assert docker.actions() == [
        ["up", "--detach", "--wait", "--wait-timeout", str(compose.HEALTH_TIMEOUT_SECONDS)],
        ["down", "--remove-orphans"],
        ["down", "--remove-orphans", "--volumes"],
    ]
    assert {words[1:3] == ["--project-name", project.project] for words, _ in docker.calls} == {True}


def test_two_checkouts_are_two_projects(docker: FakeDocker, tmp_path: Path) -> None:  # noqa: ARG001
    """Neither stops the other's containers."""
    assert Compose(tmp_path / "one").project != Compose(tmp_path / "two").project


def test_the_password_is_chosen_once_and_for_the_owner_only(docker: FakeDocker, tmp_path: Path) -> None:
    """The volume remembers it, so it must be the same at the next start."""
    project = Compose(tmp_path / "state")
    assert not project.may_have_volumes()
    project.up()
    record = tmp_path / "state" / "compose.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert Compose(tmp_path / "state").password == project.password
    assert docker.calls[0][1]["GRANTWIRE_POSTGRES_PASSWORD"] == project.password


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ({}, None),
        ({"LOCALSTACK_AUTH_TOKEN": "t"}, LICENSED_IMAGE),
        ({"LOCALSTACK_AUTH_TOKEN": "t", "LOCALSTACK_IMAGE": "mine:1.0"}, "mine:1.0"),
        ({"LOCALSTACK_IMAGE": "mine:1.0"}, "mine:1.0"),
    ],
)
def test_a_token_chooses_the_licensed_image_and_the_layer(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    image: str | None,
) -> None:
    """Without one, the community image does not apply layers: what is deployed has none."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    stack = LocalStackStack(tmp_path, progress=Progress())
    assert stack.compose.environment().get("LOCALSTACK_IMAGE") == image
    flattened = stack.deployment.artifacts.name == "flattened"
    assert flattened == ("LOCALSTACK_AUTH_TOKEN" not in given)


def test_the_socket_of_another_engine_is_handed_on(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LocalStack must use the engine that runs LocalStack."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert Compose(tmp_path).environment()["GRANTWIRE_DOCKER_SOCKET"] == "/run/user/1000/docker.sock"


def test_functions_and_people_get_different_addresses(docker: FakeDocker, tmp_path: Path) -> None:  # noqa: ARG001
    """A function lives on the project's network; this machine sees published ports."""
    stack = LocalStackStack(tmp_path, progress=Progress())
    password = stack.compose.password
    owner = f"postgresql://grantwire:{password}@postgres:5432/grantwire"
    assert stack.deployment.parameters == {
        "DatabaseUrl": database.functions_url(owner, stack.cluster),
        "MigrationDatabaseUrl": owner,
        "TokenEnvironment": "dev",
        "NatsUrl": "nats://nats:4222",
        "Stage": "local",
        "InboxEnabled": "true",
    }
    assert stack.database_url == f"postgresql://grantwire:{password}@127.0.0.1:45432/grantwire"
    assert stack.nats_url == "nats://127.0.0.1:44222"
    assert stack.emulator_url == "http://127.0.0.1:4566"
    assert stack.aws.api_url("abc", "local") == "http://127.0.0.1:4566/_aws/execute-api/abc/local"
    assert [server.is_alive() for server in stack.servers] == [True, False, True]
    assert stack.description == tmp_path / "stack.json"


def test_the_port_that_was_asked_for_is_remembered(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make status` needs no variable."""
    monkeypatch.setenv("GRANTWIRE_API_PORT", "4577")
    LocalStackStack(tmp_path, progress=Progress()).start()
    monkeypatch.delenv("GRANTWIRE_API_PORT")
    assert docker.calls[-1][1]["GRANTWIRE_API_PORT"] == "4577"
    assert LocalStackStack(tmp_path, progress=Progress()).emulator_url == "http://127.0.0.1:4577"


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (("FAKE_COMPOSE_FAILS", "version"), "`docker compose` was not found"),
        (("FAKE_DOCKER_FAILS", "version"), "engine does not respond"),
        (("PATH", "/nonexistent"), "`docker compose` was not found"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_started(
    docker: FakeDocker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: tuple[str, str],
    message: str,
) -> None:
    """No docker, no compose plugin, no engine."""
    monkeypatch.setenv(*failing)
    with pytest.raises(CommandError, match=message):
        LocalStackStack(tmp_path, progress=Progress()).start()
    assert docker.actions() == []


def test_stopping_the_stack_stops_containers_too(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make down` needs not be told which stack is up, `make clean` deletes volumes; else Docker is left alone."""
    monkeypatch.setattr(down, "STATE", tmp_path)
    down.stop(Progress())
    down.stop(Progress(), volumes=True)
    assert docker.calls == []
    Compose(tmp_path / "localstack").up()
    down.stop(Progress())
    down.stop(Progress())
    down.stop(Progress(), volumes=True)
    assert docker.actions()[1:] == [["down", "--remove-orphans"], ["down", "--remove-orphans", "--volumes"]]


def test_without_docker_the_rest_is_still_stopped(
    docker: FakeDocker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever removed Docker can still clean the checkout."""
    monkeypatch.setattr(down, "STATE", tmp_path)
    Compose(tmp_path / "localstack").up()
    monkeypatch.setenv("FAKE_DOCKER_FAILS", "version")
    down.stop(Progress(), volumes=True)
    assert "are not removed" in capsys.readouterr().out
    assert len(docker.actions()) == 1


@pytest.mark.parametrize(("up", "wanted"), [("embedded", "localstack"), ("localstack", "embedded")])
def test_a_checkout_has_one_stack_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: str, wanted: str
) -> None:
    """Both would write the same stack.json."""
    monkeypatch.setattr(selection, "STATE", tmp_path)
    (tmp_path / "stack.json").write_text(json.dumps({"stack": up}))
    assert selection.current_stack(Progress()).kind == up
    assert selection.select_stack(up, Progress()).kind == up
    with pytest.raises(CommandError, match=f"{up} stack is up"):
        selection.select_stack(wanted, Progress())
