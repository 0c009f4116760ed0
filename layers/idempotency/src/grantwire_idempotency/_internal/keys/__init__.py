"""The keys of messages and calls: how they are made, and which messages are duplicates."""
