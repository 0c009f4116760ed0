"""Version 1 of the events. `*_pb2` is generated: edit proto/grantwire/events/v1 instead."""

from grantwire.events.v1.entitlement_event_pb2 import EntitlementEvent

__all__ = ["EntitlementEvent"]
