"""Decisions about callers, and a Lambda TOKEN authorizer for API Gateway that turns them into policies.

The authorizer returns an IAM policy. API Gateway caches the policy for the token and applies it to later requests. The
policy therefore lists every path that the caller may use, not only the requested one. An invalid token gets a policy
that denies everything.

If PostgreSQL is unavailable, the authorizer raises an error. API Gateway then denies the request and caches nothing.

Behind a gateway that runs no authorizer, the functions of the routes use the same decisions through DecisionCache.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import ANONYMOUS, CLIENT_ROUTES, ROUTES
from grantwire.clients.tokens import Token
from grantwire.errors import GrantwireError, UnauthenticatedError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from grantwire.clients.lookup import LimitedLookup

# The token of an unknown client is compared with this hash, so that it takes as long as the token of a known client.
_DUMMY_HASHES = ("0" * 64,)
# Callers choose the keys, so the cache is bounded. It is emptied when it is full.
_MAX_CACHED_DECISIONS = 1000
# The methods are listed because `*` in the resource of a policy also matches slashes. In place of the method it would
# allow every path that ends like one of the routes.
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ROUTED_METHODS = sorted({route.partition(" ")[0] for route in [*ROUTES, *CLIENT_ROUTES]})
# API Gateway accepts a policy of at most 8 KB. The paths of operators are therefore one resource.
_OPERATIONS = "/v1/ops/"


@dataclass(frozen=True, slots=True)
class Decision:
    """The caller and its scopes. `reason` and `claimed_client_id` (the id in a wrong token) are only logged.

    `is_client`: the token is that of a client, which may have expired or been revoked. `is_replaced`: a rotation has
    replaced the token, which is still valid for a while. API Gateway itself refuses a malformed header with 401, and a
    decision without scopes becomes 403.
    """

    client_id: str
    scopes: frozenset[str]
    reason: str
    claimed_client_id: str | None = None
    is_malformed: bool = False
    is_client: bool = False
    is_replaced: bool = False


class Authorizer:
    """Authorizes the service clients of one environment."""

    def __init__(self, clients: LimitedLookup, environment: str) -> None:
        self._clients = clients
        self._environment = environment

    def authorize(self, header: str, method_arn: str) -> dict[str, Any]:
        """Return the policy for an Authorization header. Raise the errors of `decide`."""
        return _build_policy(self.decide(header), method_arn)

    def decide(self, header: str) -> Decision:
        """Decide who the caller is, and log it. Raise RetryableError if the client cannot be read.

        Raise UnauthenticatedError if the client is unknown and was not looked up (see LimitedLookup).
        """
        decision = self._decide(header)
        logger.info(
            "authorization decided",
            client_id=decision.client_id,
            reason=decision.reason,
            claimed_client_id=decision.claimed_client_id,
        )
        return decision

    def _decide(self, header: str) -> Decision:
        try:
            token = Token.from_header(header)
        except UnauthenticatedError:
            return Decision(ANONYMOUS, frozenset(), "malformed token", is_malformed=True)
        if token.environment != self._environment:
            return Decision(ANONYMOUS, frozenset(), "token of another environment")
        client = self._clients.find(token.client_id)
        hashes = client.token_hashes if client else _DUMMY_HASHES
        # A list, not a generator: every hash is compared, so the time does not depend on which one matches.
        matches = [hmac.compare_digest(token.hash, known_hash) for known_hash in hashes]
        if client is None or not any(matches):
            return Decision(ANONYMOUS, frozenset(), "unknown token", claimed_client_id=token.client_id)
        is_replaced = not matches[0]
        if client.inactive_reason:
            reason = client.inactive_reason
            return Decision(client.client_id, frozenset(), reason, is_client=True, is_replaced=is_replaced)
        if client.should_record_use:
            self._record_use(client.client_id)
        reason = "allowed" if client.scopes.intersection(ROUTES.values()) else "no route for its scopes"
        return Decision(client.client_id, client.scopes, reason, is_client=True, is_replaced=is_replaced)

    def _record_use(self, client_id: str) -> None:
        """Update the client's last use. A failure is only logged, because it must not deny the request."""
        try:
            self._clients.record_use(client_id)
        except GrantwireError as error:
            logger.warning("could not update client's last use", client_id=client_id, reason=str(error))


class DecisionCache:
    """Decisions of an authorizer, kept for as long as API Gateway keeps its policies, refusals included.

    For functions that authenticate callers themselves. Errors and malformed headers are not kept. The keys are hashes,
    so that the memory of a function contains no tokens.
    """

    def __init__(
        self, authorizer: Authorizer, lifetime: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._authorizer = authorizer
        self._lifetime = lifetime.total_seconds()
        self._clock = clock
        self._decisions: dict[bytes, tuple[float, Decision]] = {}

    def decide(self, header: str) -> Decision:
        """Return the decision for an Authorization header. Raise RetryableError if the client cannot be read."""
        key, now = hashlib.sha256(header.encode(errors="surrogatepass")).digest(), self._clock()
        expires_at, known = self._decisions.get(key, (now, None))
        if known is not None and now < expires_at:
            return known
        decision = self._authorizer.decide(header)
        if self._lifetime and not decision.is_malformed:
            if len(self._decisions) >= _MAX_CACHED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = (now + self._lifetime, decision)
        return decision


def _build_policy(decision: Decision, method_arn: str) -> dict[str, Any]:
    """Return an IAM policy for the paths that the scopes allow.

    It allows every method, so that the function can respond to a wrong method with 405. No route has one of the other
    methods, so a policy may allow these for all paths. Each function checks the scope of its route again. A client that
    has expired or was revoked may use only the routes about itself.
    """
    api, stage = method_arn.split("/")[:2]
    routes = {route for route, scope in ROUTES.items() if scope in decision.scopes}
    paths = {route.partition(" ")[2] for route in [*routes, *(CLIENT_ROUTES if decision.is_client else ())]}
    patterns = sorted({_to_resource_pattern(path) for path in paths})
    resources = [f"{api}/{stage}/{method}{pattern}" for pattern in patterns for method in _ROUTED_METHODS]
    if routes:
        resources += [f"{api}/{stage}/{method}/*" for method in sorted(_METHODS.difference(_ROUTED_METHODS))]
    statement = {
        "Action": "execute-api:Invoke",
        "Effect": "Allow" if resources else "Deny",
        "Resource": resources or [f"{api}/{stage}/*"],
    }
    return {
        "principalId": decision.client_id,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": {
            "scopes": " ".join(sorted(decision.scopes)),
            **({"replaced": "true"} if decision.is_replaced else {}),
        },
    }


def allows(policy: Mapping[str, Any], method_arn: str) -> bool:
    """Return whether API Gateway lets a request with this policy pass."""
    (statement,) = policy["policyDocument"]["Statement"]
    return statement["Effect"] == "Allow" and any(fnmatchcase(method_arn, known) for known in statement["Resource"])


def _to_resource_pattern(path: str) -> str:
    """Replace path parameters with `*`: `/v1/users/{user_id}/summary` becomes `/v1/users/*/summary`."""
    if path.startswith(_OPERATIONS):
        return f"{_OPERATIONS}*"
    return "/".join("*" if part.startswith("{") else part for part in path.split("/"))
