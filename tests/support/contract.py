"""Checks real responses against openapi.yaml and openapi-operations.yaml, the published contracts of the API."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BEFORE_METHOD = {401, 403, 405, 429, 503}
PUBLIC, OPERATIONS = "openapi.yaml", "openapi-operations.yaml"
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


@cache
def document() -> dict[str, Any]:
    """Return both API documents as one, whose references lead to itself."""
    public, operators = load(PUBLIC), load(OPERATIONS, within=PUBLIC)
    del operators["components"]["securitySchemes"]  # a reference to that of the public document
    assert public["paths"].keys().isdisjoint(operators["paths"])
    kinds = {kind: dict(parts) for kind, parts in public["components"].items()}
    for kind, parts in operators["components"].items():
        assert kinds.setdefault(kind, {}).keys().isdisjoint(parts), kind
        kinds[kind] |= parts
    return public | {"paths": public["paths"] | operators["paths"], "components": kinds}


def load(name: str, *, within: str = "") -> dict[str, Any]:
    """Return an API document; its references to `within` become references to itself."""
    text = (ROOT / name).read_text()
    loaded: dict[str, Any] = yaml.safe_load(text.replace(f"{within}#/", "#/") if within else text)
    return loaded


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """Return `node`, or the node that it refers to if it is a reference into the document."""
    while "$ref" in node:
        target: Any = document()
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        node = target
    return node


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every operation as method, path and description."""
    for path, item in document()["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def schema_validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return a validator for one of the document's schemas that resolves references into the document."""
    return Draft202012Validator({**schema, "components": document()["components"]})


def assert_matches_contract(
    method: str, path_template: str, status: int, headers: Mapping[str, str], body: str
) -> None:
    """Fail unless the document describes this response of this route: status, headers and body."""
    label = f"{method} {path_template} -> {status}"
    response = _describe_response(method, path_template, status, label)
    sent = {name.lower(): value for name, value in headers.items()}
    parsed = None if method == "HEAD" else _parse_body(response, sent, body, label)
    code = parsed.get("code") if isinstance(parsed, dict) else None
    _check_headers(response, sent, code, label)
    if status == 405:
        allowed = ", ".join(other for other, path, _ in operations() if path == path_template)
        assert sent["allow"] == allowed, f"{label}: Allow is {sent['allow']!r}, the path allows {allowed}"


def assert_is_error(component: str, status: int, headers: Mapping[str, str], body: str) -> None:
    """Fail unless this is one of the document's error responses, for a path that is not in the document."""
    response = document()["components"]["responses"][component]
    sent = {name.lower(): value for name, value in headers.items()}
    label = f"{component} -> {status}"
    _check_headers(response, sent, _parse_body(response, sent, body, label)["code"], label)
    statuses = {
        known
        for _, _, operation in operations()
        for known, described in operation["responses"].items()
        if resolve(described) is response
    }
    assert statuses == {str(status)}, f"{label}: the document has {component} with status {statuses}"


def _describe_response(method: str, path_template: str, status: int, label: str) -> dict[str, Any]:
    described = {other: operation for other, path, operation in operations() if path == path_template}
    assert described, f"{label}: the path is not documented"
    if method not in described:
        # The authorizer decides before the function sees the method.
        assert status in _BEFORE_METHOD, f"{label}: the method is not documented, so the status must be 405"
    operation = described.get(method) or next(iter(described.values()))
    assert str(status) in operation["responses"], f"{label}: the status is not documented"
    return resolve(operation["responses"][str(status)])


def _parse_body(response: Mapping[str, Any], sent: Mapping[str, str], body: str, label: str) -> Any:
    if "content" not in response:
        assert body == "", f"{label}: the response must not have a body"
        return None
    media_type = sent.get("content-type", "").partition(";")[0].strip()
    assert media_type in response["content"], f"{label}: Content-Type is {media_type!r}"
    parsed = json.loads(body) if media_type == "application/json" else body
    problems = schema_validator(response["content"][media_type]["schema"]).iter_errors(parsed)
    described = [f"{problem.json_path}: {problem.message}" for problem in problems]
    assert not described, f"{label}: {'; '.join(described)} in {body}"
    return parsed


def _check_headers(response: Mapping[str, Any], sent: Mapping[str, str], code: str | None, label: str) -> None:
    described = {name.lower(): resolve(header) for name, header in response.get("headers", {}).items()}
    for name, header in described.items():
        # x-required-for lists the error codes whose responses have this header, where several codes share a status.
        codes = header.get("x-required-for")
        if header.get("required") or (codes and code in codes):
            assert name in sent, f"{label}: {name} is missing"
        if codes and code not in codes:
            assert name not in sent, f"{label}: {name} does not belong to {code}"
        if name in sent:
            schema_validator(header["schema"]).validate(sent[name])
    for name in _known_headers() - described.keys():
        assert name not in sent, f"{label}: {name} is not promised"


@cache
def _known_headers() -> frozenset[str]:
    """Return every header that any response of the document has."""
    return frozenset(
        name.lower()
        for _, _, operation in operations()
        for response in operation["responses"].values()
        for name in resolve(response).get("headers", {})
    )
