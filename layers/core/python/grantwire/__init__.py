"""Grantwire: who owns what, told to everyone who needs to know, exactly once in effect.

Imports nothing: a function pays at its cold start only for the parts it names.
"""
