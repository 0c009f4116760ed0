"""Checks of the local stack of a checkout, or of the servers that the environment names (T4)."""
