"""Decides who may call what, as a Lambda TOKEN authorizer of API Gateway.

The answer is an IAM policy, which API Gateway keeps for the token and applies to every later request with it: so it
lists all that the caller may do, never only what is asked for now. Whoever may do nothing gets a policy that denies
everything. Only if it cannot be known, because PostgreSQL does not answer, an error is raised: nobody is let in, and
nothing is kept.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import ROUTES
from grantwire.clients.tokens import Token
from grantwire.errors import GrantwireError, UnauthenticatedError
from grantwire.observability import logger

if TYPE_CHECKING:
    from grantwire.clients.store import Clients

# What an unknown client's token is compared with, so that it takes as long as a known one's.
_NOBODY = ("0" * 64,)
_NO_CLIENT = "anonymous"
# In a policy's resource `*` stands for slashes too: in place of the method it would allow any path that ends as ours.
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


@dataclass(frozen=True, slots=True)
class Decision:
    """Who it is and what it may do; `reason` is for the log, and so is the client whom a wrong token names."""

    client_id: str
    scopes: frozenset[str]
    reason: str
    claimed: str | None = None


class Authorizer:
    """Knows every service client of one environment."""

    def __init__(self, clients: Clients, environment: str) -> None:
        self._clients = clients
        self._environment = environment

    def authorize(self, header: str, method_arn: str) -> dict[str, Any]:
        """The policy for whoever sent this Authorization header; RetryableError if it cannot be known."""
        decision = self._decide(header)
        logger.info("authorization decided", client_id=decision.client_id, reason=decision.reason, claimed_client_id=decision.claimed)
        return _policy(decision, method_arn)

    def _decide(self, header: str) -> Decision:
        try:
            token = Token.of_header(header)
        except UnauthenticatedError:
            return Decision(_NO_CLIENT, frozenset(), "malformed token")
        if token.environment != self._environment:
            return Decision(_NO_CLIENT, frozenset(), "token of another environment")
        client = self._clients.find(token.client_id)
        known = [hmac.compare_digest(token.hash, each) for each in (client.hashes if client else _NOBODY)]
        if client is None or not any(known):
            return Decision(_NO_CLIENT, frozenset(), "unknown token", claimed=token.client_id)
        if client.refusal:
            return Decision(client.client_id, frozenset(), client.refusal)
        if client.worth_noting:
            self._note(client.client_id)
        reason = "allowed" if client.scopes.intersection(ROUTES.values()) else "no route for its scopes"
        return Decision(client.client_id, client.scopes, reason)

    def _note(self, client_id: str) -> None:
        """Not worth refusing anybody for, whatever goes wrong."""
        try:
            self._clients.seen(client_id)
        except GrantwireError as error:
            logger.warning("could not update client's last use", client_id=client_id, reason=str(error))


def _policy(decision: Decision, method_arn: str) -> dict[str, Any]:
    """Every method of a path that the scopes allow: the function itself tells a wrong method so (405)."""
    api, stage = method_arn.split("/")[:2]
    paths = sorted({route.partition(" ")[2] for route, scope in ROUTES.items() if scope in decision.scopes})
    allowed = [f"{api}/{stage}/{method}{_pattern(path)}" for path in paths for method in _METHODS]
    statement = {
        "Action": "execute-api:Invoke",
        "Effect": "Allow" if allowed else "Deny",
        "Resource": allowed or [f"{api}/{stage}/*"],
    }
    return {
        "principalId": decision.client_id,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": {"scopes": " ".join(sorted(decision.scopes))},
    }


def _pattern(path: str) -> str:
    """`/v1/users/{user_id}/summary` as `/v1/users/*/summary`."""
    return "/".join("*" if part.startswith("{") else part for part in path.split("/"))
