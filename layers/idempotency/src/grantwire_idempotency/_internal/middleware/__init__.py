"""Middleware for the header Idempotency-Key: one core, and adapters for ASGI and WSGI."""
