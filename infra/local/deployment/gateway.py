"""Complete a REST API that ministack has deployed, so that its own responses are those of AWS.

ministack ignores two parts of the template: `GatewayResponses`, and methods for `any` (SAM writes both into the API's
definition as extensions). Both work if they are put through the API of API Gateway and deployed again. The template is
the only list of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from infra.local.deployment.template import api_routes
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Properties of a method that an `any` method has in common with the other method of its path.
_AUTHORIZATION = ("authorizationType", "authorizerId")


class ApiGateway(Protocol):
    """The API of API Gateway on a local AWS."""

    def api_gateway(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request below `/restapis` and return the response. Raises CommandError if it is refused."""


def complete_api(gateway: ApiGateway, template: dict[str, Any], api: str, stage: str) -> None:
    """Put the gateway responses and the `any` methods of a template, and deploy the API again.

    Repeating it changes nothing. Raises CommandError if the API does not have the template's paths.
    """
    for kind, response in gateway_responses(template).items():
        gateway.api_gateway("PUT", f"/{api}/gatewayresponses/{kind}", response)
    resources = gateway.api_gateway("GET", f"/{api}/resources?limit=500")["item"]
    by_path = {resource["path"]: resource for resource in resources}
    for path in sorted({path for method, path in api_routes(template) if method == "ANY"}):
        if path not in by_path:
            raise CommandError(f"The deployed API has no path {path}.")
        _put_any_method(gateway, f"/{api}/resources/{by_path[path]['id']}/methods", by_path[path]["resourceMethods"])
    gateway.api_gateway("POST", f"/{api}/deployments", {"stageName": stage})


def gateway_responses(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the gateway responses of a template by type, in the form of PutGatewayResponse."""
    responses: dict[str, Any] = {}
    for resource in template["Resources"].values():
        responses |= resource.get("Properties", {}).get("GatewayResponses", {})
    return {kind: _to_request(response) for kind, response in responses.items()}


def _to_request(response: Mapping[str, Any]) -> dict[str, Any]:
    headers = response.get("ResponseParameters", {}).get("Headers", {})
    status = {"statusCode": str(response["StatusCode"])} if "StatusCode" in response else {}
    return {
        **status,
        "responseParameters": {f"gatewayresponse.header.{name}": value for name, value in headers.items()},
        "responseTemplates": response["ResponseTemplates"],
    }


def _put_any_method(gateway: ApiGateway, methods: str, existing: Mapping[str, Any]) -> None:
    """Put an `any` method with the authorizer and the function of the path's other method."""
    model = next(method for name, method in existing.items() if name != "ANY")
    gateway.api_gateway("PUT", f"{methods}/ANY", {name: model[name] for name in _AUTHORIZATION if model.get(name)})
    integration = {"type": "AWS_PROXY", "httpMethod": "POST", "uri": model["methodIntegration"]["uri"]}
    gateway.api_gateway("PUT", f"{methods}/ANY/integration", integration)
