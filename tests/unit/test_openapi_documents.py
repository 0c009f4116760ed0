"""A person who integrates reads openapi.yaml alone; openapi-operations.yaml adds what operators need."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.contract import OPERATIONS, PUBLIC, load

DOCUMENTS = (PUBLIC, OPERATIONS)
_OF_OPERATORS = re.compile(r"/v1/ops/|/console$|/debug/")


def references(name: str) -> set[str]:
    """Return every target of a reference in a document."""
    return set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(load(name))))


def test_routes_of_operators_are_in_their_own_document() -> None:
    """The public document has none of them, and theirs has no others."""
    assert [path for path in load(PUBLIC)["paths"] if _OF_OPERATORS.match(path)] == []
    assert [path for path in load(OPERATIONS)["paths"] if not _OF_OPERATORS.match(path)] == []


def test_public_document_needs_no_other_file() -> None:
    """Tools that read it need one file; the other document refers to it and to itself."""
    assert {target.partition("#")[0] for target in references(PUBLIC)} == {""}
    assert {target.partition("#")[0] for target in references(OPERATIONS)} == {"", PUBLIC}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_has_only_components_that_it_uses(name: str) -> None:
    """What operators alone use is not in the public document."""
    kinds: dict[str, dict[str, Any]] = load(name)["components"]
    defined = {f"#/components/{kind}/{one}" for kind, parts in kinds.items() for one in parts}
    used = {target for target in references(name) if target.startswith("#")}
    assert defined - {"#/components/securitySchemes/bearer"} == used


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_declares_the_tags_that_it_uses(name: str) -> None:
    """Readers see the operations below their tags."""
    document = load(name)
    used = {tag for item in document["paths"].values() for operation in item.values() for tag in operation["tags"]}
    assert [tag["name"] for tag in document["tags"] if tag["name"] in used] == [tag["name"] for tag in document["tags"]]
    assert used == {tag["name"] for tag in document["tags"]}


def test_both_documents_are_of_one_api() -> None:
    """The same version, servers and tokens."""
    public, operators = load(PUBLIC), load(OPERATIONS)
    for part in ("openapi", "servers", "security"):
        assert public[part] == operators[part]
    assert public["info"]["version"] == operators["info"]["version"]
