"""Redis and Valkey through redis-py: scripts, and the errors of the driver."""
