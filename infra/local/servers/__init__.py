"""The servers of the embedded stack, as processes of this machine."""
