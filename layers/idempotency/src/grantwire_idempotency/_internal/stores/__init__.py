"""Stores for idempotency keys; `interface` defines the guarantees of a store."""
