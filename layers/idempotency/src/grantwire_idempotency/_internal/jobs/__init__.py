"""Guarded runs of functions with a store: `@idempotent`, its engine, and the minimal interfaces to a store."""
