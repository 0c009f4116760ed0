"""Grantwire: an entitlement service that stores who owns what and notifies other systems of every change.

This package imports nothing, so that the cold start of a function loads only the modules that it uses.
"""
