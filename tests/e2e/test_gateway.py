"""Responses that API Gateway creates itself, and user ids with special characters, on the deployed stack."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from infra.local.deployment.gateway import gateway_responses
from infra.local.deployment.template import api_routes, load_template
from tests.e2e.aws import client
from tests.e2e.http import Http
from tests.support.client import CONSOLE, ENTITLEMENTS, GRANTS
from tests.support.contract import assert_is_error, assert_matches_contract

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack

ROUTES = api_routes()
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/users", "/v1/users/u", "/v1/users/u/other", "/v2/entitlements/grants"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path_is_not_found(http: Http, path: str, method: str) -> None:
    """E5: with and without a token."""
    for caller in (http, Http(http.url)):
        response = caller.send(method, path)
        assert_is_error("NotFound", response.status, response.headers, response.body)


def list_wrong_methods() -> list[tuple[str, str]]:
    """Return every wrong method of one path and one wrong method of each other path, each time another one."""
    methods = {
        path: [method for method in METHODS if (method, path) not in ROUTES]
        for path in sorted({path for _, path in ROUTES})
    }
    each = [(wrong[number % len(wrong)], path) for number, (path, wrong) in enumerate(methods.items())]
    return sorted({*each, *((method, GRANTS) for method in methods[GRANTS])})


def test_wrong_method_is_not_allowed(http: Http, subtests: pytest.Subtests) -> None:
    """E5: 405 with `Allow`, as openapi.yaml describes. All methods of a path that have no event share one."""
    for method, path in list_wrong_methods():
        with subtests.test(method=method, path=path):
            response = http.send(method, path.replace("{user_id}", "u").replace("{stock_keeping_unit}", "s"))
            assert response.status == 405
            assert_matches_contract(method, path, response.status, response.headers, response.body)


def test_every_gateway_response_of_the_template_is_deployed(stack: EmbeddedStack) -> None:
    """E5: also those that the emulator cannot cause."""
    api = stack.deployment.outputs()["ApiId"]
    deployed = client(stack, "apigateway").get_gateway_responses(restApiId=api)["items"]
    for kind, response in gateway_responses(load_template()).items():
        (found,) = (item for item in deployed if item["responseType"] == kind)
        assert {name: found.get(name) for name in response} == response


@pytest.mark.parametrize(
    "name",
    ["a%2Fb", "%", "%25", "100% sure", "a b", "a+b", "ユーザー", "é~!$&'()*,;=:@", 'quote"s\\', "..", "[x]{y}|z^`"],
)
def test_user_id_is_decoded_exactly_once(http: Http, name: str) -> None:
    """E4: a user id with special characters is the same in the body and, percent-encoded, in the path."""
    user = f"{name} {uuid.uuid4()}"
    assert http.grant(str(uuid.uuid4()), user_id=user).json["user_id"] == user
    listed = http.list_entitlements(user).json
    assert (listed["user_id"], len(listed["entitlements"])) == (user, 1)


def test_encoded_percent_sign_is_not_decoded_again(http: Http) -> None:
    """E4: `admi%256E` is the user `admi%6E`, not `admin`."""
    response = http.send("GET", ENTITLEMENTS.replace("{user_id}", "admi%256E"))
    assert response.json["user_id"] == "admi%6E"


def test_encoded_slash_is_another_path_on_the_emulator(http: Http) -> None:
    """E5: it decodes the path before it selects the route, so it responds as to an unknown path; on AWS it works."""
    response = http.send("GET", ENTITLEMENTS.replace("{user_id}", quote("a/b", safe="")))
    assert_matches_contract("GET", ENTITLEMENTS, response.status, response.headers, response.body)
    assert (response.status, json.loads(response.body)["code"]) == (404, "NOT_FOUND")


def test_console_is_served_without_a_token_and_not_sent_twice(http: Http) -> None:
    """T5: the page is public. A browser that has it gets 304, through API Gateway too."""
    stranger = Http(http.url)
    page = stranger.send("GET", CONSOLE)
    assert_matches_contract("GET", CONSOLE, page.status, page.headers, page.body)
    assert (page.status, page.body[:15]) == (200, "<!doctype html>")
    again = stranger.send("GET", CONSOLE, [("If-None-Match", page.headers["Etag"])])
    assert_matches_contract("GET", CONSOLE, again.status, again.headers, again.body)
    assert (again.status, again.body) == (304, "")
