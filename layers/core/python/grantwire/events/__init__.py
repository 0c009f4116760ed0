"""The events of entitlements: their types, how a message has them, and whether they took place.

`encoding` and `decoding` convert between the payload in the outbox and a message of the stream. `genuine` asks the
audit which events took place. `v1` has the protocol buffer classes that are generated from `proto/`. This package
itself imports nothing: a function of the API must not load protocol buffers.
"""

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

# The fields of an entitlement that an event has where they are set (K3), in the order of the SQL function
# entitlement_fields.
OPTIONAL_FIELDS = ("starts_at", "expires_at")
