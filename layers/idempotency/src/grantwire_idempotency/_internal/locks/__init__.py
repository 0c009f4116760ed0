"""Distributed locks; `interface` defines the guarantees of a lock."""
