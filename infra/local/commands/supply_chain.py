"""`make audit` and `make sbom`: known vulnerabilities, secrets in the checkout, and the bill of materials."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, LAYER_LOCKS, STATE
from infra.local.toolchain import environments
from infra.local.toolchain.requirements import SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from infra.local.progress import Progress

BILL_OF_MATERIALS = STATE / "sbom" / "grantwire.cdx.json"
# Detectors of patterns that only look like secrets: the tests contain many invented passwords and random values.
DISABLED_DETECTORS = ("Base64HighEntropyString", "BasicAuthDetector", "HexHighEntropyString", "KeywordDetector")
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def audit(_arguments: Sequence[str], progress: Progress) -> int:
    """Search for known vulnerabilities and secrets; return 1 if something was found."""
    environments.ensure_further(environments.AUDIT, progress)
    findings = []
    for source in SOURCES:
        lock = (CHECKOUT / source).with_suffix(".txt")
        with progress.step(f"Searching the packages of {lock.relative_to(CHECKOUT)} for known vulnerabilities"):
            findings += _audit_lock(lock)
    with progress.step("Searching the checkout for secrets"):
        findings += _find_secrets()
    for finding in findings:
        progress.print_line(f"  {finding}")
    progress.print_line("Something was found." if findings else "Nothing was found.")
    return 1 if findings else 0


def sbom(_arguments: Sequence[str], progress: Progress) -> int:
    """Write the bill of materials of the layers, which is all that is deployed with the functions' own code."""
    environments.ensure_further(environments.AUDIT, progress)
    BILL_OF_MATERIALS.parent.mkdir(parents=True, exist_ok=True)
    lock = BILL_OF_MATERIALS.with_name("requirements.txt")
    lock.write_text("".join(part.read_text() for part in LAYER_LOCKS.values()))
    with progress.step("Writing the bill of materials"):
        output = ("--output-reproducible", "--of", "JSON", "-o", str(BILL_OF_MATERIALS))
        _run("cyclonedx-py", "requirements", *output, str(lock))
        check_bill(json.loads(BILL_OF_MATERIALS.read_text()), lock.read_text())
    progress.print_line(f"The bill of materials is {BILL_OF_MATERIALS.relative_to(CHECKOUT)}.")
    return 0


def check_bill(bill: Mapping[str, Any], lock: str) -> None:
    """Compare a bill of materials with a lock: the same packages and versions, each with its hashes.

    Raises CommandError with the differences.
    """
    listed = {(_normalise(item["name"]), item["version"]) for item in bill["components"]}
    without_hashes = sorted(item["name"] for item in bill["components"] if not _hashes(item))
    if differences := sorted(listed ^ locked_packages(lock)):
        raise CommandError(f"The bill of materials and the lock differ: {differences}")
    if without_hashes:
        raise CommandError(f"The bill of materials has no hashes of {', '.join(without_hashes)}.")


def locked_packages(lock: str) -> set[tuple[str, str]]:
    """Return the names and versions in a lock."""
    return {(_normalise(name), version) for name, version in _LOCKED.findall(lock)}


def vulnerabilities(report: Mapping[str, Any], lock: str) -> list[str]:
    """Return the findings of a pip-audit report. A package that was not examined is a finding too."""
    findings = []
    reported = set()
    for package in report["dependencies"]:
        name = _normalise(package["name"])
        reported.add(name)
        if "skip_reason" in package:
            findings.append(f"{name} was not examined: {package['skip_reason']}")
        findings += [f"{name} {package['version']}: {found['id']}" for found in package.get("vulns", [])]
    # A lock is valid for every platform, but the report only contains the packages of this one.
    unconditional = {_normalise(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==[^ ;\\]+ \\$", lock, re.MULTILINE)}
    return findings + [f"{name} was not examined" for name in sorted(unconditional - reported)]


def _audit_lock(lock: Path) -> list[str]:
    """Return the findings for one lock.

    pip-audit also succeeds if it could examine nothing, so its report is read and not only its exit code.
    """
    options = ("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")
    output = _run("pip-audit", *options, "-r", str(lock), accepted=(0, 1))
    try:
        report = json.loads(output)
    except ValueError as error:
        raise CommandError(f"pip-audit wrote no report for {lock.relative_to(CHECKOUT)}.") from error
    return vulnerabilities(report, lock.read_text())


def _find_secrets() -> list[str]:
    """Return the file and line of each secret in the files that git tracks."""
    disabled = [option for name in DISABLED_DETECTORS for option in ("--disable-plugin", name)]
    report = json.loads(_run("detect-secrets", "scan", "--no-verify", *disabled))
    return [
        f"{file}:{secret['line_number']}: {secret['type']}"
        for file, secrets in sorted(report["results"].items())
        for secret in secrets
    ]


def _run(program: str, *arguments: str, accepted: Iterable[int] = (0,)) -> str:
    command = [str(environments.AUDIT.folder / "bin" / program), *arguments]
    result = subprocess.run(command, cwd=CHECKOUT, env=os.environ, capture_output=True, text=True, check=False)
    if result.returncode not in accepted:
        raise CommandError(f"{program} failed: {result.stderr.strip()[-2000:]}")
    return result.stdout


def _hashes(component: Mapping[str, Any]) -> list[Any]:
    """Return the hashes of a component; cyclonedx-py attaches them to its references."""
    references = component.get("externalReferences", [])
    return [*component.get("hashes", []), *(item for reference in references for item in reference.get("hashes", []))]


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
