"""Checks of an installation: what is wrong, and the command that repairs it (T4)."""
