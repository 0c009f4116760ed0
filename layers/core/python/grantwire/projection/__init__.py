"""The read model of each user's rights, built from the events (P1, P2)."""
