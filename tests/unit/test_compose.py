"""infra/compose.yaml, and the `docker` commands of `make up STACK=localstack`."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local import progress
from infra.local.commands import down
from infra.local.containers import compose
from infra.local.containers.compose import FILE, LICENSED_IMAGE, Compose
from infra.local.containers.localstack import Nats
from infra.local.deployment.target import own_target
from infra.local.deployment.template import declared_parameters
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.servers.nats_users import TOPOLOGY, WORKERS
from infra.local.stack import database, selection
from infra.local.stack.localstack import LocalStackStack
from infra.local.system.locks import hold_lock
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PROJECT: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = PROJECT["services"]
PINNED = re.compile(r"[a-z0-9/-]+:\d+(\.\d+)+(-[a-z0-9]+)?")

# Replaces Docker: records its calls and prints the output of a running project.
DOCKER = """#!{python}
import json, os, sys
args = sys.argv[1:]
with open({calls!r}, "a") as calls:
    print(json.dumps([args, dict(os.environ)]), file=calls)
if args[0] == os.environ.get("FAKE_DOCKER_FAILS") or args[:2] == ["compose", os.environ.get("FAKE_COMPOSE_FAILS")]:
    sys.exit(1)
if "ps" in args:
    print("postgres\\nlocalstack")
if "port" in args:
    print("127.0.0.1:4" + args[-1])
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
        """The arguments and the environment of each call."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [(arguments, environment) for arguments, environment in map(json.loads, lines)]

    def actions(self) -> list[list[str]]:
        """Return the action and the options of each `docker compose` call."""
        return [arguments[arguments.index(str(FILE)) + 1 :] for arguments, _ in self.calls if str(FILE) in arguments]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """A fake Docker, without the user's own settings."""
    for name in ("DOCKER_HOST", "LOCALSTACK_AUTH_TOKEN", "LOCALSTACK_IMAGE", "GRANTWIRE_API_PORT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return FakeDocker(folder)


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_a_pinned_image_a_health_check_and_local_ports(name: str) -> None:
    """`up --wait` needs a health check. A port without an address would be open to the network."""
    service = SERVICES[name]
    default = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(.+)\}", service["image"])
    assert default is not None
    assert PINNED.fullmatch(default[1])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= service["healthcheck"].keys()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_licensed_image_is_pinned() -> None:
    """It is named in the program, because the compose file has no conditions."""
    assert PINNED.fullmatch(LICENSED_IMAGE)


def test_functions_find_postgres_and_nats_by_name() -> None:
    """LocalStack starts their containers on the project's network, with the engine's socket."""
    localstack = SERVICES["localstack"]
    assert localstack["environment"]["LAMBDA_DOCKER_NETWORK"] == "${COMPOSE_PROJECT_NAME}_default"
    assert not any("networks" in service for service in SERVICES.values())
    socket = "${GRANTWIRE_DOCKER_SOCKET:-/var/run/docker.sock}:/var/run/docker.sock"
    assert [name for name, service in SERVICES.items() if socket in service["volumes"]] == ["localstack"]


def test_localstack_has_the_same_port_inside_and_outside() -> None:
    """SAM passes an address to CloudFormation that LocalStack must be able to use."""
    port = "${GRANTWIRE_API_PORT:-4566}"
    assert SERVICES["localstack"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert SERVICES["localstack"]["environment"]["GATEWAY_LISTEN"] == f"0.0.0.0:{port}"


def test_data_are_kept_in_declared_volumes() -> None:
    """`make down` removes containers, not data."""
    volumes = [volume for service in SERVICES.values() for volume in service["volumes"]]
    named = {volume.split(":")[0] for volume in volumes if volume[0] not in "$/."}
    assert named == set(PROJECT["volumes"]) == set(SERVICES)


def test_up_waits_for_health_and_down_keeps_the_data(docker: FakeDocker, tmp_path: Path) -> None:
    """With `volumes=True`, down also deletes the data."""
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
    assert {arguments[1:3] == ["--project-name", project.project] for arguments, _ in docker.calls} == {True}


def test_each_checkout_has_its_own_project(docker: FakeDocker, tmp_path: Path) -> None:  # noqa: ARG001
    """Neither checkout stops the other's containers."""
    assert Compose(tmp_path / "one").project != Compose(tmp_path / "two").project


def test_password_is_chosen_once_and_kept_private(docker: FakeDocker, tmp_path: Path) -> None:
    """The data in the volume need the same password at the next start."""
    project = Compose(tmp_path / "state")
    assert not project.may_have_volumes()
    project.up()
    record = tmp_path / "state" / "compose.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert Compose(tmp_path / "state").password == project.password
    assert docker.calls[0][1]["GRANTWIRE_POSTGRES_PASSWORD"] == project.password


def test_nats_gets_a_private_file_with_its_users(docker: FakeDocker, tmp_path: Path) -> None:
    """G2: the passwords stay the same, and a running server is restarted if its users change."""
    assert SERVICES["nats"]["command"][:2] == ["--config", "/etc/nats/grantwire.conf"]
    assert "${GRANTWIRE_NATS_CONFIG:?must be set}:/etc/nats/grantwire.conf:ro" in SERVICES["nats"]["volumes"]
    project = Compose(tmp_path / "state")
    project.up()
    file = tmp_path / "state" / "nats.conf"
    assert docker.calls[0][1]["GRANTWIRE_NATS_CONFIG"] == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(file.with_name("users.json").stat().st_mode) == 0o600
    before = file.read_text()
    assert all(password in before for password in project.nats_users.passwords.values())
    project.up()
    assert [action[0] for action in docker.actions()] == ["up", "up"]
    file.write_text("authorization {}")
    project.up()
    assert file.read_text() == before
    assert [action[0] for action in docker.actions()] == ["up", "up", "up", "restart"]


@pytest.mark.parametrize(
    ("variables", "image"),
    [
        ({}, None),
        ({"LOCALSTACK_AUTH_TOKEN": "t"}, LICENSED_IMAGE),
        ({"LOCALSTACK_AUTH_TOKEN": "t", "LOCALSTACK_IMAGE": "mine:1.0"}, "mine:1.0"),
        ({"LOCALSTACK_IMAGE": "mine:1.0"}, "mine:1.0"),
    ],
)
def test_token_selects_the_licensed_image_and_the_layer(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    image: str | None,
) -> None:
    """Without a token, the deployment has no layers, because the community image does not apply them."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stack = LocalStackStack(tmp_path, progress=Progress())
    assert stack.compose.environment().get("LOCALSTACK_IMAGE") == image
    flattened = stack.deployment.artifacts.name == "flattened"
    assert flattened == ("LOCALSTACK_AUTH_TOKEN" not in variables)


def test_socket_of_docker_host_is_passed_to_localstack(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LocalStack must use the engine that it runs on."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert Compose(tmp_path).environment()["GRANTWIRE_DOCKER_SOCKET"] == "/run/user/1000/docker.sock"


def test_functions_and_this_machine_use_different_addresses(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    """A function uses the project's network; this machine uses published ports."""
    stack = LocalStackStack(tmp_path, progress=Progress())
    password = database.role_password(stack.cluster, "grantwire")
    owner = f"postgresql://grantwire:{password}@postgres:5432/grantwire"
    assert stack.deployment.parameters == declared_parameters() | own_target().parameters | {
        "DatabaseUrl": database.functions_url(owner, stack.cluster),
        "ClientsDatabaseUrl": database.clients_url(owner, stack.cluster),
        "MigrationDatabaseUrl": owner,
        "TokenEnvironment": "dev",
        "NatsUrl": stack.compose.nats_users.url(WORKERS, "nats:4222"),
        "TopologyNatsUrl": stack.compose.nats_users.url(TOPOLOGY, "nats:4222"),
        "ReaderConsumers": "reader",
        "Stage": "local",
        "InboxEnabled": "true",
        "GatewayAuthenticates": "false",
    }
    assert stack.database_url == f"postgresql://grantwire:{password}@127.0.0.1:45432/grantwire"
    passwords = stack.compose.nats_users.passwords
    assert stack.nats_url == f"nats://{WORKERS}:{passwords[WORKERS]}@127.0.0.1:44222"
    assert f"127.0.0.1::{Nats.monitoring_port}" in SERVICES["nats"]["ports"]
    assert SERVICES["nats"]["command"][-2:] == ["--http_port", str(Nats.monitoring_port)]
    assert stack.nats_monitoring_url == "http://127.0.0.1:48222"
    assert stack.nats_reader_url == f"nats://reader:{passwords['reader']}@127.0.0.1:44222"
    assert len(set(passwords.values())) == 3
    assert stack.emulator_url == "http://127.0.0.1:4566"
    assert stack.aws.api_url("abc", "local") == "http://127.0.0.1:4566/_aws/execute-api/abc/local"
    assert [server.is_alive() for server in stack.servers] == [True, False, True]
    assert stack.description == tmp_path / "stack.json"


@pytest.mark.parametrize(("licence", "authenticates"), [("", "false"), ("t", "true")])
def test_routes_authenticate_only_behind_the_community_image(
    docker: FakeDocker,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    licence: str,
    authenticates: str,
) -> None:
    """S4: only the licensed image runs the authorizer."""
    monkeypatch.setenv("LOCALSTACK_AUTH_TOKEN", licence)
    parameters = LocalStackStack(tmp_path, progress=Progress()).deployment.parameters
    assert parameters["GatewayAuthenticates"] == authenticates


def test_chosen_port_is_saved_for_later_commands(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make status` works without the variable."""
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
def test_missing_docker_is_reported_before_anything_is_started(
    docker: FakeDocker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: tuple[str, str],
    message: str,
) -> None:
    """The compose plugin, the engine or the program itself may be missing."""
    monkeypatch.setenv(*failing)
    with pytest.raises(CommandError, match=message):
        LocalStackStack(tmp_path, progress=Progress()).start()
    assert docker.actions() == []


def test_stop_also_stops_the_containers(docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make down` finds out which stack is up, and `make clean` deletes volumes. Otherwise Docker is not called."""
    monkeypatch.setattr(down, "STATE", tmp_path)
    down.stop(Progress())
    down.stop(Progress(), volumes=True)
    assert docker.calls == []
    Compose(tmp_path / "localstack").up()
    down.stop(Progress())
    down.stop(Progress())
    down.stop(Progress(), volumes=True)
    assert docker.actions()[1:] == [["down", "--remove-orphans"], ["down", "--remove-orphans", "--volumes"]]


def test_stop_works_without_docker(
    docker: FakeDocker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`make clean` still works after Docker was removed."""
    monkeypatch.setattr(down, "STATE", tmp_path)
    Compose(tmp_path / "localstack").up()
    monkeypatch.setenv("FAKE_DOCKER_FAILS", "version")
    down.stop(Progress(), volumes=True)
    assert "are not removed" in capsys.readouterr().out
    assert len(docker.actions()) == 1


@pytest.mark.parametrize(("up", "requested"), [("embedded", "localstack"), ("localstack", "embedded")])
def test_checkout_has_one_stack_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: str, requested: str
) -> None:
    """Both stacks write the same stack.json. The other stack may come up while this one waits for its turn."""
    monkeypatch.setattr(selection, "STATE", tmp_path)
    monkeypatch.setattr(progress, "ANNOUNCE_AFTER_SECONDS", 0.0)
    output = io.StringIO()
    with ThreadPoolExecutor() as pool:
        with hold_lock(tmp_path / "stack.lock", Progress()):
            waiting = pool.submit(selection.select_stack(requested, Progress(output)).up)
            assert wait_until(lambda: "Waiting for another command" in output.getvalue() or waiting.done(), 60)
            (tmp_path / "stack.json").write_text(json.dumps({"stack": up}))
            assert not waiting.done()
        with pytest.raises(CommandError, match=f"{up} stack is up"):
            waiting.result(60)
    assert selection.current_stack(Progress()).kind == up
