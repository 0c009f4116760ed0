"""Service clients: registered callers of the API, their bearer tokens and their scopes.

The id of a client never changes, while its tokens can be rotated. Only hashes of tokens are stored. This package
exports nothing: the functions that serve requests need only `scopes`, and must not load the other modules.
"""
