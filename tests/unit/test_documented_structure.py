"""Statements of the documents about the structure of the code are those of the code."""

from __future__ import annotations

import re
import tomllib

from grantwire_cli.checks import preflight
from tests.support.paths import ROOT

_NAME = re.compile(r"[a-z_]+")


def layers() -> list[set[str]]:
    """Return the layers of the service that import-linter enforces, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one.get("containers") == ["grantwire"])
    return [set(_NAME.findall(layer)) for layer in contract["layers"]]


def test_contributing_has_the_layers_of_the_imports() -> None:
    """The line that a developer follows equals the contract, with the library at its end."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (line,) = re.findall(r"^`(api → .*)`\.$", text, re.MULTILINE)
    assert [set(_NAME.findall(part)) for part in line.split("→")] == [*layers(), {"grantwire_idempotency"}]


def test_architecture_draws_the_layers_of_the_imports() -> None:
    """The picture equals the contract, with the functions above and the library below."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawing = text.partition("Imports point in one direction")[2].partition("```mermaid\n")[2].partition("```")[0]
    labels = dict(re.findall(r'(\w+)\["([^"]+)"\]', drawing))
    edges = [re.findall(r"\w+", line) for line in re.sub(r'\["[^"]+"\]', "", drawing).splitlines()[1:]]
    chain = [edges[0][0], *(node for nodes in edges for node in nodes[1:])]
    drawn = [set(_NAME.findall(labels.get(node, node))) for node in chain]
    assert drawn == [{"functions"}, *layers(), {"grantwire_idempotency"}]


def test_connections_of_workers_are_those_of_the_table() -> None:
    """J3: what doctor and docs/deploy.md count follows from the table of connections."""
    text = (ROOT / "docs" / "runbook-reference.md").read_text()
    table = text.partition("## Connection exhaustion")[2].partition("## ")[0]
    counts: dict[str, int] = {}
    for names, connections in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            counts[name] = max(int(number) for number in re.findall(r"\d+", connections))
    overlapping = {
        "relay_outbox",
        "bridge_events",
        "deliver_notifications",
        "expire_entitlements",
        "record_advisories",
        "run_operator_commands",
    }
    sweep, heartbeats = 1, preflight.WORKERS
    total = 2 * sum(counts[name] for name in overlapping) + sweep + heartbeats
    assert total == preflight.WORKER_CONNECTIONS
    assert f"- {total} for the workers" in (ROOT / "docs" / "deploy.md").read_text()
