"""The routes of the API: each parses its request, calls one use case, and renders its result."""
