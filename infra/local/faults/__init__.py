"""What `make fault` breaks in the embedded stack, and how each fault is undone (W4)."""
