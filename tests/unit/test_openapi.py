"""openapi.yaml and openapi-operations.yaml together must be valid, and match the template and the code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.api.responses import STATUS_CODES
from grantwire.clients.scopes import CLIENT_ROUTES, PUBLIC_ROUTES, ROUTES
from grantwire.entitlements import ChangeCommand, ListRequest, Operation
from grantwire.errors import BadRequestError
from grantwire.idempotency import parse_key
from infra.local.deployment.template import api_routes, load_template
from tests.support.contract import assert_matches_contract, document, operations, resolve, schema_validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GRANTS = "/v1/entitlements/grants"
ENTITLEMENTS = "/v1/users/{user_id}/entitlements"
CHECK = "/v1/users/{user_id}/entitlements/{stock_keeping_unit}"
CHANGE = {"user_id": "u_123", "stock_keeping_unit": "item1", "reason": "purchase", "purchase_id": "p_456"}
GRANTED = (
    '{"user_id":"u_123","stock_keeping_unit":"item1","status":"ACTIVE","version":1,'
    '"updated_at":"2026-01-08T07:10:00.000001Z"}'
)
JSON = {"Content-Type": "application/json"}


def _nodes(node: Any, where: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of the document with its path, except example payloads."""
    if isinstance(node, dict):
        yield where, node
        for name, child in node.items():
            if name not in {"value", "example"}:
                yield from _nodes(child, f"{where}/{name}")
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from _nodes(child, f"{where}/{number}")


def _examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield every example with its path and its schema."""
    for where, node in _nodes(document()):
        if "schema" in node:
            if "example" in node:
                yield where, node["schema"], node["example"]
            for name, example in node.get("examples", {}).items():
                yield f"{where}/examples/{name}", node["schema"], example["value"]


def _responses() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every response of every operation: operation id, status, response."""
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            yield operation["operationId"], status, resolve(response)


def _codes(response: dict[str, Any]) -> set[str]:
    """Return the error codes that a response can have; none for a page, and for a response without content."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    codes: set[str] = set()
    for part in schema.get("allOf", []):
        code = part.get("properties", {}).get("code", {})
        codes |= set(code.get("enum", [])) | ({code["const"]} if "const" in code else set())
    return codes


def test_document_and_template_have_the_same_routes() -> None:
    """Every route is documented, and every documented route exists."""
    served = {route for route in api_routes() if route[0] != "ANY"}
    assert {(method, path) for method, path, _ in operations()} == served


def test_every_path_has_an_event_for_other_methods() -> None:
    """The documented 405 response needs an event for all other methods."""
    assert set(document()["paths"]) == {path for method, path in api_routes() if method == "ANY"}


def test_document_is_openapi_3_1() -> None:
    """It has the keys that OpenAPI 3.1 requires."""
    assert document()["openapi"].startswith("3.1.")
    assert {"title", "version", "description"} <= document()["info"].keys()
    assert all(server["url"].endswith("/{stage}") for server in document()["servers"])
    schemes = document()["components"]["securitySchemes"]
    assert {name for requirement in document()["security"] for name in requirement} == schemes.keys()
    assert all(path.startswith("/") for path in document()["paths"])


def test_every_operation_documents_its_required_scope() -> None:
    """E5: every operation can also respond with 401 and 403, unless it is public."""
    named = {f"{method} {path}": operation["security"] for method, path, operation in operations()}
    scopes = {route: [{"bearer": [scope.value]}] for route, scope in ROUTES.items()}
    any_client: dict[str, list[dict[str, list[str]]]] = {route: [{"bearer": []}] for route in CLIENT_ROUTES}
    assert named == scopes | any_client | {route: [] for route in PUBLIC_ROUTES}
    for method, path, operation in operations():
        refusals = {"401", "403"} & operation["responses"].keys()
        assert refusals == (set() if f"{method} {path}" in PUBLIC_ROUTES else {"401", "403"})


def test_responses_of_api_gateway_are_documented_examples() -> None:
    """E5: the bodies that API Gateway creates itself are examples in the document."""
    responses = load_template()["Resources"]["Api"]["Properties"]["GatewayResponses"]
    for kind, name in {
        "UNAUTHORIZED": "Unauthenticated",
        "ACCESS_DENIED": "Forbidden",
        "THROTTLED": "RateLimited",
    }.items():
        body = json.loads(responses[kind]["ResponseTemplates"]["application/json"])
        examples = document()["components"]["responses"][name]["content"]["application/json"]["examples"]
        assert body in [example["value"] for example in examples.values()]


def test_every_reference_resolves() -> None:
    """Also in components that nothing uses."""
    references = [node for _, node in _nodes(document()) if "$ref" in node]
    assert references
    for node in references:
        assert node["$ref"].startswith("#/"), node
        resolve(node)


def test_every_component_is_used() -> None:
    """The document has no unused components."""
    used = {node["$ref"] for _, node in _nodes(document()) if "$ref" in node}
    kinds = {kind: parts for kind, parts in document()["components"].items() if kind != "securitySchemes"}
    defined = {f"#/components/{kind}/{name}" for kind, parts in kinds.items() for name in parts}
    assert defined == used


def test_every_operation_is_complete() -> None:
    """A unique id, a summary, every path parameter, and a description and a schema for every response."""
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations():
        assert operation["summary"]
        assert {"200", "202"} & operation["responses"].keys()
        parameters = [resolve(parameter) for parameter in operation.get("parameters", [])]
        named = {parameter["name"] for parameter in parameters if parameter["in"] == "path" and parameter["required"]}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert all(parameter["description"] and "schema" in parameter for parameter in parameters)
    for operation_id, status, response in _responses():
        assert response["description"], (operation_id, status)
        assert status == "304" or response["content"], (operation_id, status)
        assert all("schema" in content for content in response.get("content", {}).values()), (operation_id, status)


def test_every_schema_is_valid() -> None:
    """OpenAPI 3.1 uses JSON Schema draft 2020-12."""
    schemas = [node["schema"] for _, node in _nodes(document()) if "schema" in node]
    for schema in [*schemas, *document()["components"]["schemas"].values()]:
        schema_validator(schema).check_schema(schema)


@pytest.mark.parametrize(("schema", "example"), [pytest.param(*rest, id=where) for where, *rest in _examples()])
def test_every_example_matches_its_schema(schema: dict[str, Any], example: object) -> None:
    """Readers copy examples, so they must be valid."""
    schema_validator(schema).validate(example)


def test_every_response_has_an_example() -> None:
    """If several codes share a status, each code has one."""
    for operation_id, status, response in _responses():
        contents = response.get("content", {}).values()
        values = [example["value"] for content in contents for example in content["examples"].values()]
        assert values or status == "304", (operation_id, status)
        assert {value["code"] for value in values if "code" in value} == _codes(response)


def test_documented_error_codes_match_the_code() -> None:
    """Every code is documented with its status and in the list of codes."""
    documented = {(code, int(status)) for _, status, response in _responses() for code in _codes(response)}
    assert documented == set(STATUS_CODES.items())
    assert set(document()["components"]["schemas"]["Error"]["properties"]["code"]["enum"]) == {
        code for code, _ in documented
    }


def test_every_retryable_response_has_retry_after() -> None:
    """Always with 429 and 503, and with the 409 that is not final."""
    for operation_id, status, response in _responses():
        header = resolve(response.get("headers", {}).get("Retry-After", {}))
        if status in {"429", "503"}:
            assert header["required"], (operation_id, status)
        elif "REQUEST_IN_PROGRESS" in _codes(response):
            assert header["x-required-for"] == ["REQUEST_IN_PROGRESS"]
        else:
            assert not header, (operation_id, status)


def _accepts(parse: Callable[[], object]) -> bool:
    try:
        parse()
    except BadRequestError:
        return False
    return True


@pytest.mark.parametrize("field", CHANGE)
@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "\u3000",
        "a",
        " a ",
        "字" * 64,
        "字" * 65,
        "🎁" * 128,
        "x" * 129,
        "a\n",
        "\x00",
        "a\x7fb",
        "\x85",
        7,
        None,
    ],
)
def test_body_schema_and_parser_agree(field: str, value: object) -> None:
    """The document and the code have the same limits."""
    body = CHANGE | {field: value}
    schema = document()["components"]["schemas"]["Change"]
    assert schema_validator(schema).is_valid(body) == _accepts(lambda: ChangeCommand.parse(Operation.REVOKE, body))


@pytest.mark.parametrize("body", [{}, CHANGE | {"extra": "1"}, {"user_id": "u_123"}])
def test_missing_and_unknown_fields_are_rejected_by_both(body: dict[str, Any]) -> None:
    """All four fields are required, and no others are allowed."""
    assert not schema_validator(document()["components"]["schemas"]["Change"]).is_valid(body)
    assert not _accepts(lambda: ChangeCommand.parse(Operation.REVOKE, body))


@pytest.mark.parametrize("key", ["", "a", "a b", "a,b", "a, b", "x" * 255, "x" * 256, "käse", "a\tb", "\x00", "~", "!"])
def test_key_schema_and_parser_agree(key: str) -> None:
    """The code accepts exactly the keys that the document allows."""
    schema = document()["components"]["parameters"]["IdempotencyKey"]["schema"]
    assert schema_validator(schema).is_valid(key) == _accepts(lambda: parse_key([key]))


@pytest.mark.parametrize("limit", [-1, 0, 1, 999, 1000, 1001])
def test_limit_schema_and_parser_agree(limit: int) -> None:
    """The maximum and the default are 1,000."""
    schema = _query_parameter("limit")["schema"]
    assert schema_validator(schema).is_valid(limit) == _accepts(lambda: ListRequest.parse("u", {"limit": [str(limit)]}))
    assert ListRequest.parse("u", {}).page.limit == schema["default"]


def test_documented_query_parameters_match_the_code() -> None:
    """The parser rejects every other name."""
    assert _accepts(lambda: ListRequest.parse("u", {"limit": ["1"], "after": ["a"], "prefix": ["b"]}))
    for name in ("after", "prefix", "status"):
        assert not _accepts(lambda: ListRequest.parse("u", {name: [""]}))  # noqa: B023 - called at once
        assert not schema_validator(_query_parameter(name)["schema"]).is_valid("")
    for status in _query_parameter("status")["schema"]["enum"]:
        assert _accepts(lambda: ListRequest.parse("u", {"status": [status]}))  # noqa: B023
    (operation,) = (operation for _, path, operation in operations() if path == ENTITLEMENTS)
    assert [part["name"] for part in operation["parameters"] if part["in"] == "query"] == [
        *("limit", "after", "status", "prefix")
    ]


def _query_parameter(name: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        part for _, path, operation in operations() if path == ENTITLEMENTS for part in operation["parameters"]
    ]
    return next(part for part in parameters if part["name"] == name)


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"),
    [
        ("POST", GRANTS, 200, JSON | {"Idempotent-Replayed": "true", "Cache-Control": "no-store"}, GRANTED),
        ("POST", GRANTS, 200, {"content-type": "application/json; charset=utf-8"}, GRANTED),
        ("POST", GRANTS, 503, JSON | {"retry-after": "1"}, '{"code":"UNAVAILABLE","message":"x"}'),
        ("POST", GRANTS, 409, JSON | {"Retry-After": "1"}, '{"code":"REQUEST_IN_PROGRESS","message":"x"}'),
        ("PUT", GRANTS, 405, JSON | {"Allow": "POST"}, '{"code":"METHOD_NOT_ALLOWED","message":"use POST"}'),
        ("HEAD", GRANTS, 405, JSON | {"Allow": "POST"}, ""),
        ("GET", ENTITLEMENTS, 200, JSON, '{"user_id":"u","entitlements":[]}'),
        ("GET", CHECK, 304, {"ETag": f'"{"0" * 32}"', "Cache-Control": "private, max-age=0"}, ""),
    ],
)
def test_documented_response_passes_the_contract_check(
    method: str, path: str, status: int, headers: dict[str, str], body: str
) -> None:
    """The check that other tests use accepts valid responses."""
    assert_matches_contract(method, path, status, headers, body)


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body", "message"),
    [
        ("POST", "/v2", 200, JSON, GRANTED, "the path is not documented"),
        ("POST", GRANTS, 201, JSON, GRANTED, "the status is not documented"),
        ("GET", CHECK, 304, {"Cache-Control": "private, max-age=0"}, "{}", "must not have a body"),
        ("GET", CHECK, 304, {}, "", "cache-control is missing"),
        ("PUT", GRANTS, 200, JSON, GRANTED, "must be 405"),
        (
            "PUT",
            GRANTS,
            405,
            JSON | {"Allow": "GET"},
            '{"code":"METHOD_NOT_ALLOWED","message":"x"}',
            "Allow is",
        ),
        ("PUT", GRANTS, 405, JSON, '{"code":"METHOD_NOT_ALLOWED","message":"x"}', "allow is missing"),
        ("POST", GRANTS, 200, {}, GRANTED, "Content-Type"),
        ("POST", GRANTS, 200, JSON, GRANTED.replace("ACTIVE", "REVOKED"), "'REVOKED' is not one of"),
        ("POST", GRANTS, 200, JSON, GRANTED.replace(".000001Z", "Z"), "updated_at"),
        ("POST", GRANTS, 200, JSON, GRANTED.replace("}", ',"x":1}'), "Additional properties"),
        ("POST", GRANTS, 400, JSON, '{"code":"INTERNAL","message":"x"}', "'BAD_REQUEST' was expected"),
        ("POST", GRANTS, 503, JSON, '{"code":"UNAVAILABLE","message":"x"}', "retry-after is missing"),
        ("POST", GRANTS, 409, JSON, '{"code":"REQUEST_IN_PROGRESS","message":"x"}', "retry-after is missing"),
        (
            "POST",
            GRANTS,
            409,
            JSON | {"Retry-After": "1"},
            '{"code":"ENTITLEMENT_STATE_CONFLICT","message":"not granted"}',
            "does not belong",
        ),
        (
            "GET",
            ENTITLEMENTS,
            200,
            JSON | {"Idempotent-Replayed": "true"},
            '{"user_id":"u","entitlements":[]}',
            "promised",
        ),
    ],
)
def test_undocumented_response_fails_the_contract_check(
    method: str, path: str, status: int, headers: dict[str, str], body: str, message: str
) -> None:
    """The check that other tests use rejects responses that the document does not allow."""
    with pytest.raises(AssertionError, match=message):
        assert_matches_contract(method, path, status, headers, body)
