"""The metric of refused requests by caller. Only ids of known clients are values of its dimension `caller`."""

from __future__ import annotations

REFUSED_OUTCOMES = frozenset({"BAD_REQUEST", "FORBIDDEN", "REQUEST_IN_PROGRESS", "UNAUTHENTICATED"})
REFUSED = {"RequestsRefused": ("caller", "outcome", "service")}
