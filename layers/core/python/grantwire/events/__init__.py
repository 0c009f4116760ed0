"""Event types, and in `v1` the protocol buffer classes that are generated from `proto/`."""

# The SQL functions entitlement_status_after and entitlement_event_type have the same list; a test compares them.
EVENT_TYPES = frozenset(
    {
        "EntitlementGranted",
        "EntitlementRevoked",
        "EntitlementExtended",
        "EntitlementStarted",
        "EntitlementExpiring",
        "EntitlementExpired",
    }
)
