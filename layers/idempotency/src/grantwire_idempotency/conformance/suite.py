"""The guarantees of `stores/interface.py` as tests, with lost responses, pauses and clock differences (C3, C4, C20)."""

from __future__ import annotations

from grantwire_idempotency.conformance.calls import claim_key, outcome
from grantwire_idempotency.conformance.concurrency import ConcurrencyConformance
from grantwire_idempotency.conformance.entries import EntryConformance
from grantwire_idempotency.conformance.faults import FaultConformance
from grantwire_idempotency.conformance.limits import LimitConformance
from grantwire_idempotency.conformance.versions import VersionConformance

__all__ = ["StoreConformance", "claim_key", "outcome"]


class StoreConformance(
    EntryConformance, VersionConformance, LimitConformance, ConcurrencyConformance, FaultConformance
):
    """The conformance suite; a subclass, or a fixture, provides a `harness`."""
