"""Import and export of millions of lines, in constant memory and resumable (K7).

An import reads its file twice: first to validate every line, then to send the lines in batches. Each line has an
idempotency key, given or derived from its content, so that a repeated import has no second effect. Lines of the same
entitlement take effect in the order of the file.
"""
