"""Routes behind different gateways: who decodes the path, and who authenticates the caller."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grantwire.api.authentication import FORBIDDEN_MESSAGE
from grantwire.api.http import HttpHandler
from grantwire.api.request import UNAUTHENTICATED_MESSAGE, Request
from grantwire.api.responses import Response
from grantwire.clients.authorizer import Authorizer, DecisionCache
from grantwire.clients.scopes import Scope
from grantwire.clients.store import Client
from grantwire.clients.tokens import Token
from grantwire.errors import ConfigError, RetryableError
from grantwire.wiring.gateway import Gateway
from infra.local.deployment.gateway import complete_api, gateway_responses
from infra.local.deployment.template import api_routes, load_template
from infra.local.errors import CommandError
from tests.support.client import CALLER, ENTITLEMENTS, GRANTS, Unlimited, event
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = Token("dev", "0123456789ab", "s" * 43)
CLIENT = Client(TOKEN.client_id, frozenset({Scope.WRITE_ENTITLEMENTS}), (TOKEN.hash,), None, should_record_use=False)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def user_id_behind(gateway_decodes: bool, path: str) -> str:
    """Return the user id that a function reads if a caller sends this path segment."""
    value = unquote(path) if gateway_decodes else path  # ministack decodes it, AWS does not
    sent = event("GET", ENTITLEMENTS, pathParameters={"user_id": value})
    return Request.from_api_gateway(sent, path_is_decoded=gateway_decodes).path_parameters["user_id"]


@pytest.mark.parametrize("gateway_decodes", [False, True], ids=["AWS", "ministack"])
@given(NAMES)
@example("a%2Fb")
@example("a/b")
@example("100%")
@example("%25")
@example("a b+c")
@example("ユーザー é")
def test_every_user_id_arrives_as_it_was_encoded(gateway_decodes: bool, user_id: str) -> None:
    """E4: path parameters are decoded exactly once, behind each kind of gateway."""
    assert user_id_behind(gateway_decodes, quote(user_id, safe="")) == user_id


@pytest.mark.parametrize("gateway_decodes", [False, True], ids=["AWS", "ministack"])
@pytest.mark.parametrize(("path", "user_id"), [("admi%256E", "admi%6E"), ("a%252Fb", "a%2Fb"), ("admi%6E", "admin")])
def test_user_id_that_looks_encoded_is_not_decoded_again(gateway_decodes: bool, path: str, user_id: str) -> None:
    """E4: otherwise one user's entitlements would be returned for another user id."""
    assert user_id_behind(gateway_decodes, path) == user_id


@dataclass
class FakeClients:
    """A store with one client, which can fail."""

    client: Client | None = CLIENT
    error: Exception | None = None

    def find(self, client_id: str) -> Client | None:
        """Return the client if it has this id."""
        if self.error:
            raise self.error
        return self.client if self.client and self.client.client_id == client_id else None


def respond(clients: FakeClients, *headers: str, **parts: Any) -> dict[str, Any]:
    """Return the response of a route that authenticates its callers."""
    callers = DecisionCache(Authorizer(clients, "dev"), timedelta(seconds=60))  # type: ignore[arg-type]
    handler = HttpHandler(
        {f"POST {GRANTS}": lambda request, _: Response(200, json.dumps(request.caller))},
        lambda _: Unlimited(),
        lambda _: Gateway(callers=callers),
    )
    sent = event("POST", GRANTS, multiValueHeaders={"Authorization": list(headers)}, requestContext={"requestId": "r"})
    return handler(sent | parts, None)


@pytest.mark.parametrize(
    ("client", "headers", "status", "message"),
    [
        (CLIENT, (), 401, UNAUTHENTICATED_MESSAGE),
        (CLIENT, ("",), 401, UNAUTHENTICATED_MESSAGE),
        (CLIENT, (TOKEN.text,), 401, UNAUTHENTICATED_MESSAGE),
        (CLIENT, (f"Bearer {TOKEN.text}", f"Bearer {TOKEN.text}"), 401, UNAUTHENTICATED_MESSAGE),
        (CLIENT, (f"Bearer {Token('live', TOKEN.client_id, TOKEN.secret).text}",), 403, FORBIDDEN_MESSAGE),
        (CLIENT, (f"Bearer {Token('dev', TOKEN.client_id, 'x' * 43).text}",), 403, FORBIDDEN_MESSAGE),
        (None, (f"Bearer {TOKEN.text}",), 403, FORBIDDEN_MESSAGE),
        (replace(CLIENT, inactive_reason="revoked"), (f"Bearer {TOKEN.text}",), 403, FORBIDDEN_MESSAGE),
        (replace(CLIENT, inactive_reason="expired"), (f"Bearer {TOKEN.text}",), 403, FORBIDDEN_MESSAGE),
        (
            replace(CLIENT, scopes=frozenset({Scope.READ_ENTITLEMENTS})),
            (f"Bearer {TOKEN.text}",),
            403,
            "missing required scope entitlements:write",
        ),
    ],
)
def test_route_without_an_authorizer_refuses_as_the_authorizer_does(
    client: Client | None, headers: tuple[str, ...], status: int, message: str
) -> None:
    """S4: with the same statuses. A caller that the event claims to have is ignored."""
    for context in ({"requestId": "r"}, {"requestId": "r", "authorizer": CALLER}):
        response = respond(FakeClients(client), *headers, requestContext=context)
        assert (response["statusCode"], json.loads(response["body"])["message"]) == (status, message)


def test_route_without_an_authorizer_serves_a_valid_token(capsys: pytest.CaptureFixture[str]) -> None:
    """S4: the caller is the client, also in the request line. The token is not logged."""
    response = respond(FakeClients(), f"Bearer {TOKEN.text}")
    assert (response["statusCode"], response["body"]) == (200, f'"{TOKEN.client_id}"')
    written = capsys.readouterr().out
    assert json.loads(written.splitlines()[-1])["caller"] == TOKEN.client_id
    assert TOKEN.secret not in written


def test_route_without_an_authorizer_is_unavailable_without_its_database() -> None:
    """S4: 503 with Retry-After, as API Gateway responds if the authorizer fails."""
    response = respond(FakeClients(error=RetryableError("later")), f"Bearer {TOKEN.text}")
    assert (response["statusCode"], response["headers"]["Retry-After"]) == (503, "1")


def test_error_of_authentication_is_internal_and_not_raised() -> None:
    """S4: the caller gets no detail."""
    response = respond(FakeClients(error=ZeroDivisionError("secret")), f"Bearer {TOKEN.text}")
    assert response["statusCode"] == 500
    assert "secret" not in response["body"]


def test_refused_client_is_counted_by_its_id_only_if_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """An id in a wrong token is only claimed."""
    respond(FakeClients(replace(CLIENT, inactive_reason="revoked")), f"Bearer {TOKEN.text}")
    respond(FakeClients(), f"Bearer {Token('dev', TOKEN.client_id, 'x' * 43).text}")
    lines = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "Requests" in line]
    assert [(line["caller"], line["RequestsRefused"]) for line in lines] == [
        (TOKEN.client_id, [1.0]),
        ("anonymous", [1.0]),
    ]


def test_messages_are_those_of_the_gateway() -> None:
    """E5: a caller gets the same response from API Gateway and from a route that authenticates."""
    responses = {
        kind: json.loads(response["responseTemplates"]["application/json"])
        for kind, response in gateway_responses(load_template()).items()
        if kind in {"UNAUTHORIZED", "ACCESS_DENIED"}
    }
    assert responses == {
        "UNAUTHORIZED": {"code": "UNAUTHENTICATED", "message": UNAUTHENTICATED_MESSAGE},
        "ACCESS_DENIED": {"code": "FORBIDDEN", "message": FORBIDDEN_MESSAGE},
    }


LOCAL = {**PLAINTEXT, "DATABASE_URL": "postgresql://u@h/d", "TOKEN_ENVIRONMENT": "dev"}


def test_gateway_of_aws_is_the_default() -> None:
    """S4: it authenticates and does not decode; the settings of callers are then not needed."""
    assert Gateway.build({}) == Gateway(decodes_path=False, callers=None)


def test_settings_select_another_gateway() -> None:
    """S4: the two properties are independent."""
    assert Gateway.build({"GATEWAY_DECODES_PATH": "true"}) == Gateway(decodes_path=True)
    assert Gateway.build({**LOCAL, "GATEWAY_AUTHENTICATES": "false"}).callers is not None


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            {"DATABASE_URL": "", "DATABASE_SECRET_ARN": "arn:aws:secretsmanager:s"},
            "cannot be used with DATABASE_SECRET",
        ),
        ({"TOKEN_ENVIRONMENT": ""}, "TOKEN_ENVIRONMENT is missing"),
        ({"AUTHORIZER_CACHE_SECONDS": "3601"}, "AUTHORIZER_CACHE_SECONDS must be"),
        ({"GATEWAY_AUTHENTICATES": "no"}, "GATEWAY_AUTHENTICATES must be true or false"),
    ],
)
def test_gateway_without_authentication_is_refused_on_aws(environ: dict[str, str], problem: str) -> None:
    """S4: with an AWS secret, a route does not start without the authorizer."""
    with pytest.raises(ConfigError, match=problem):
        Gateway.build({**LOCAL, "GATEWAY_AUTHENTICATES": "false", **environ})


class FakeApiGateway:
    """An API with the paths of the template; it records what is put."""

    def __init__(self, paths: set[str]) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        method = {"authorizationType": "CUSTOM", "authorizerId": "a1", "methodIntegration": {"uri": "function"}}
        self.resources = [
            {"id": path.replace("/", "-"), "path": path, "resourceMethods": {"GET": method}} for path in paths
        ]

    def api_gateway(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Record the request."""
        self.requests.append((method, path, body))
        return {"item": self.resources}


def test_api_is_completed_with_everything_that_the_template_has() -> None:
    """E5: every gateway response, and an `any` method for each path, before the stage is deployed again."""
    template, paths = load_template(), {path for _, path in api_routes()}
    gateway = FakeApiGateway(paths)
    complete_api(gateway, template, "grantwire", "local")
    put = {path: body for method, path, body in gateway.requests if method == "PUT"}
    written = template["Resources"]["Api"]["Properties"]["GatewayResponses"]
    kinds = {path.rpartition("/")[2] for path in put if path.startswith("/grantwire/gatewayresponses/")}
    assert kinds == written.keys()
    assert put["/grantwire/gatewayresponses/THROTTLED"] == {
        "statusCode": "429",
        "responseParameters": {"gatewayresponse.header.Retry-After": "'1'"},
        "responseTemplates": written["THROTTLED"]["ResponseTemplates"],
    }
    assert "statusCode" not in put["/grantwire/gatewayresponses/DEFAULT_4XX"]
    for path in paths:
        methods = f"/grantwire/resources/{path.replace('/', '-')}/methods"
        assert put[f"{methods}/ANY"] == {"authorizationType": "CUSTOM", "authorizerId": "a1"}
        assert put[f"{methods}/ANY/integration"]["uri"] == "function"
    assert gateway.requests[-1] == ("POST", "/grantwire/deployments", {"stageName": "local"})


def test_api_without_a_path_of_the_template_is_an_error() -> None:
    """E5: a deployment that is not the template's must not be completed silently."""
    with pytest.raises(CommandError, match="The deployed API has no path"):
        complete_api(FakeApiGateway(set()), load_template(), "grantwire", "local")
