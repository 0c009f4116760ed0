"""G9: the stack gives other accounts of the machine, and web pages, nothing but the API."""

from __future__ import annotations

import http.client
import io
import json
import os
import pwd
import stat
import subprocess
import sys
import textwrap
import uuid
import zipfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from infra.local.deployment.sam import STACK_NAME
from infra.local.servers.emulator import REGION
from infra.local.system.processes import HAS_PROC, PROC, group_members
from tests.e2e.aws import client
from tests.support.client import ENTITLEMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http

LIST_FUNCTIONS = ("GET", "/2015-03-31/functions", "lambda", b"")
ATTACKS = {
    "list functions": LIST_FUNCTIONS,
    "create a function": ("POST", "/2015-03-31/functions", "lambda", b"{}"),
    "invoke a function": ("POST", f"/2015-03-31/functions/{STACK_NAME}-manage-clients/invocations", "lambda", b"{}"),
    "read a secret": ("POST", "/", "secretsmanager", b'{"SecretId": "x"}'),
    "read an artifact": ("GET", "/grantwire-artifacts", "s3", b""),
    "delete everything": ("POST", "/_ministack/reset", "", b""),
    "read the state": ("GET", "/_ministack/health", "", b""),
}


def request(stack: EmbeddedStack, attack: tuple[str, str, str, bytes], headers: Mapping[str, str]) -> int:
    """Return the status of a request to the emulator's port."""
    method, path, _, body = attack
    connection = http.client.HTTPConnection(urlsplit(stack.emulator_url).netloc, timeout=30)
    try:
        connection.request(method, path, body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()


def signature(access_key: str, service: str) -> dict[str, str]:
    """Return the header of a request that is signed with this key; the emulator checks no signature."""
    scope = f"{access_key}/20260101/{REGION}/{service}/aws4_request"
    return {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_emulator_refuses_callers_without_the_access_key(stack: EmbeddedStack, attack: str) -> None:
    """A caller of the emulator can run code as the user who started the stack."""
    name = ATTACKS[attack]
    for headers in ({}, signature("local", name[2]), signature("000000000000", name[2])):
        assert request(stack, name, headers) == 403
        assert request(stack, name, {**headers, "X-Amz-Target": "secretsmanager.GetSecretValue"}) == 403


def test_access_key_in_the_description_opens_the_emulator(stack: EmbeddedStack) -> None:
    """Scripts find it in stack.json, next to the addresses."""
    description = json.loads(stack.description.read_text())
    assert description["access_key_id"] == stack.aws.access_key
    assert urlsplit(description["api_url"]).netloc == urlsplit(description["emulator_url"]).netloc
    assert request(stack, LIST_FUNCTIONS, signature(description["access_key_id"], "lambda")) == 200


@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Host", "evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_web_page_cannot_call_the_api(stack: EmbeddedStack, method: str, header: tuple[str, str]) -> None:
    """Not even with a token: a page on another site, and one whose name resolves to this machine."""
    path = urlsplit(stack.api_url).path + ENTITLEMENTS.replace("{user_id}", "u_1")
    headers = {"Authorization": f"Bearer {stack.token}"}
    if method == "GET":
        assert request(stack, (method, path, "", b""), headers) == 200
    assert request(stack, (method, path, "", b""), {**headers, **dict([header])}) == 403


def test_functions_can_call_the_emulator(stack: EmbeddedStack) -> None:
    """They read secrets and publish to SNS with the SDK's default credentials."""
    name = f"closed-{uuid.uuid4().hex[:8]}"
    client(stack, "secretsmanager").create_secret(Name=name, SecretString="found")
    code = f"""
        import boto3
        def handler(event, context):
            print("reading")
            return boto3.client("secretsmanager").get_secret_value(SecretId="{name}")["SecretString"]
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("handler.py", textwrap.dedent(code))
    lambda_client = client(stack, "lambda")
    lambda_client.create_function(
        FunctionName=name,
        Runtime="python3.11",
        Role="arn:aws:iam::000000000000:role/x",
        Handler="handler.handler",
        Code={"ZipFile": archive.getvalue()},
        Timeout=20,
    )
    try:
        assert json.loads(lambda_client.invoke(FunctionName=name)["Payload"].read()) == "found"
    finally:
        lambda_client.delete_function(FunctionName=name)


def test_state_is_readable_by_its_owner_only(stack: EmbeddedStack) -> None:
    """Also where root starts the stack, and PostgreSQL's account must be able to enter two of the folders."""
    files = [
        stack.description,
        stack.state / "token",
        stack.emulator.state / "access-key",
        stack.cluster.state / "password",
        stack.nats.users.file,
    ]
    patterns = ("*.log", "*/*.log", "*/*.json", "*/password.*")
    files += [path for pattern in patterns for path in stack.state.glob(pattern)]
    assert len({path.name for path in files if path.name.startswith("password.")}) == 3  # one for each role
    assert len(files) > 8
    assert {str(path): oct(mode) for path in files if (mode := stat.S_IMODE(path.stat().st_mode)) != 0o600} == {}
    folders = {stack.emulator.state: 0o700, stack.nats.state: 0o700}
    folders[stack.cluster.state] = 0o700 if os.geteuid() else 0o711
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in folders} == folders


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_another_account_gets_nothing_but_the_api(stack: EmbeddedStack, http: Http) -> None:
    """It can neither read the state nor the environment of a process, but it may call the API with a token."""
    assert http.list_entitlements("u_1").status == 200  # starts a function
    assert stack.emulator.pid is not None
    processes = [f"/proc/{pid}/environ" for pid in group_members(stack.emulator.pid)]
    private = [str(stack.description), str(stack.state / "token"), str(stack.emulator.state), *processes]
    program = """
        import encodings.idna, json, os, sys, urllib.error, urllib.request
        arguments = json.load(sys.stdin)
        # The interpreter itself may be in a folder that only root can enter.
        os.setgroups([]), os.setgid(arguments["gid"]), os.setuid(arguments["uid"])
        readable = []
        for path in arguments["private"]:
            try:
                os.listdir(path) if os.path.isdir(path) else open(path).read()
                readable.append(path)
            except (PermissionError, FileNotFoundError):
                pass
        def status(url, headers):
            try:
                return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).status
            except urllib.error.HTTPError as error:
                return error.code
        print(json.dumps({
            "uid": os.geteuid(), "readable": readable,
            "emulator": status(arguments["emulator"] + "/2015-03-31/functions", {}),
            "api": status(arguments["api"], {}),
        }))
    """
    nobody = pwd.getpwnam("nobody")
    arguments = {
        "private": private,
        "uid": nobody.pw_uid,
        "gid": nobody.pw_gid,
        "emulator": stack.emulator_url,
        "api": f"{stack.api_url}/v1/users/u_1/entitlements",
    }
    result = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(program)],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={},
    )
    assert json.loads(result.stdout) == {"uid": nobody.pw_uid, "readable": [], "emulator": 403, "api": 401}


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows the sockets of a process as files")
def test_emulator_listens_on_one_port_only(stack: EmbeddedStack, http: Http) -> None:
    """No other TCP port and no Unix socket leads around the check of the access key."""
    assert http.list_entitlements("u_1").status == 200
    assert stack.emulator.pid is not None
    own = {f"socket:[{inode}]": address for inode, address in _listening().items()}
    opened = {_link(path) for pid in group_members(stack.emulator.pid) for path in (PROC / str(pid) / "fd").glob("*")}
    assert {own[link] for link in opened if link in own} == {f"0100007F:{stack.emulator.port:04X}"}


def _listening() -> dict[str, Any]:
    """Return the address of each listening TCP or Unix socket of the machine by its inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in (PROC / "net" / name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                found[fields[9]] = fields[1]
    for line in (PROC / "net" / "unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:  # accepts connections
            found[fields[6]] = fields[7] if len(fields) > 7 else "unnamed"
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
