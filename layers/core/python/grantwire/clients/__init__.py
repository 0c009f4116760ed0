"""Who may call the API: service clients with opaque bearer tokens, and the scopes that each may use.

A client keeps its id for life; its tokens come and go. Only hashes of tokens are stored. Nothing is imported from here:
the functions on a caller's way need `scopes` alone.
"""
