"""Service clients: registered callers of the API, their bearer tokens and their scopes.

A client keeps its id for its whole life, while its tokens are rotated. Only hashes of tokens are stored. This package
exports nothing: the functions that serve requests need only `scopes`, and must not load the other modules.
"""
