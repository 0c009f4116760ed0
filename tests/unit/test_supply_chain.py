"""The workflow of the CI has few permissions, and audit and bill of materials miss no locked package."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from infra.local.commands.supply_chain import check_bill, vulnerabilities
from infra.local.errors import CommandError
from infra.local.main import COMMANDS
from infra.local.toolchain import interpreter
from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCK = """\
# comment
first-package==1.0 \\
    --hash=sha256:00
second.package==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:00
"""


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[Any, Any]:
    """A workflow as a document."""
    document: dict[Any, Any] = yaml.safe_load(request.param.read_text())
    return document


def test_workflow_can_only_read_the_repository(workflow: dict[Any, Any]) -> None:
    """A compromised dependency finds no token that can write, and no secret."""
    assert workflow["permissions"] == {}
    assert {tuple(job["permissions"].items()) for job in workflow["jobs"].values()} == {(("contents", "read"),)}
    assert "pull_request_target" not in workflow[True]  # YAML reads `on` as a boolean
    assert "secrets." not in str(workflow)
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash(path: Any) -> None:
    """A moved tag cannot change the code that runs here. The comment names the version."""
    uses = re.findall(r"uses: (.+)", path.read_text())
    assert uses
    assert [line for line in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_installs_by_hash_only(path: Any) -> None:
    """G14: a package whose file was replaced in the index is not installed. A wheel built here needs no index."""
    installs = re.findall(r"pip\S* install (.+)", path.read_text().replace("\\\n", " "))
    allowed = ("--require-hashes --requirement requirements/", "--no-index --no-deps .grantwire/wheel/")
    assert [command for command in installs if not command.startswith(allowed)] == []
    assert installs


def test_workflow_installs_every_extra_of_the_library() -> None:
    """The conformance suite then tests each store."""
    project = tomllib.loads((ROOT / "layers" / "idempotency" / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    source = (ROOT / "requirements" / "library.in").read_text()
    listed = [line for line in source.splitlines() if line and not line.startswith(("#", "-"))]
    assert {re.split("[><=~]", requirement)[0] for requirement in extras} | {"pytest"} == set(listed)


def test_workflow_runs_the_commands_of_the_readme() -> None:
    """The first thing that a new developer tries is tested on each change."""
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in document["jobs"].items()}
    library = jobs.pop("library")
    assert library[0] == "make wheel"
    assert library[-1].endswith("pytest --pyargs grantwire_idempotency.conformance")
    commands = [command for job in jobs.values() for command in job]
    assert {command.removeprefix("make ") for command in commands} <= COMMANDS.keys()
    readme = (ROOT / "README.md").read_text().partition("## Two commands")[2]
    assert commands[:2] == re.findall(r"^(make \w+) +#", readme, re.MULTILINE)[:2]
    assert {"make check", "make audit", "make sbom"} <= set(commands)


def test_workflow_tests_the_stack_on_each_supported_python() -> None:
    """X6: with that Python, although the machine of the CI has others."""
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    minors = range(interpreter.OLDEST[1], interpreter.NEWEST[1] + 1)
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in minors]
    assert job["env"] == {"PYTHON": "python${{ matrix.python }}"}


def test_workflow_tests_the_library_on_each_allowed_python() -> None:
    """C14, C31: the versions that the wheel's metadata allow; a classifier names those on which every program runs."""
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    project = (ROOT / "layers" / "idempotency" / "pyproject.toml").read_text()
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    (first, limit) = re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project)[0]
    allowed = [f"3.{minor}" for minor in range(int(first), int(limit))]
    assert allowed == document["jobs"]["library"]["strategy"]["matrix"]["python"]
    assert declared == allowed[: len(declared)]


def test_package_that_was_not_examined_is_a_finding() -> None:
    """Without network, pip-audit skips packages and reports success."""
    examined = {"name": "First_Package", "version": "1.0", "vulns": []}
    assert vulnerabilities({"dependencies": [examined]}, LOCK) == []
    assert vulnerabilities({"dependencies": []}, LOCK) == ["first-package was not examined"]
    vulnerable = {**examined, "vulns": [{"id": "PYSEC-1"}]}
    assert vulnerabilities({"dependencies": [vulnerable]}, LOCK) == ["first-package 1.0: PYSEC-1"]
    skipped = {"name": "second-package", "skip_reason": "no network"}
    assert vulnerabilities({"dependencies": [examined, skipped]}, LOCK) == [
        "second-package was not examined: no network"
    ]


def test_bill_of_materials_must_equal_the_lock() -> None:
    """A missing package, another version, or a package without hashes is an error."""
    hashes = [{"alg": "SHA-256", "content": "00"}]
    first, second = (
        {"name": name, "version": version, "externalReferences": [{"hashes": hashes}]}
        for name, version in (("first-package", "1.0"), ("second.package", "2.0"))
    )
    check_bill({"components": [first, second]}, LOCK)
    for wrong in ([first], [first, {**second, "version": "2.1"}], [first, {**second, "externalReferences": []}]):
        with pytest.raises(CommandError, match="second"):
            check_bill({"components": wrong}, LOCK)
