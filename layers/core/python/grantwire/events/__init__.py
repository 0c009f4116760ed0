"""Events: their types, and the messages that are generated from `proto/` (`v1`)."""

# The list of event types in Python. In SQL it is the function entitlement_status_after; a test compares the two.
EVENT_TYPES = frozenset({"EntitlementGranted", "EntitlementRevoked"})
