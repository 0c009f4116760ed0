"""Event types, and in `v1` the protocol buffer classes that are generated from `proto/`."""

# The SQL function entitlement_status_after has the same list; a test compares the two.
EVENT_TYPES = frozenset({"EntitlementGranted", "EntitlementRevoked"})
