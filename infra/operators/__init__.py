"""The operator's commands: they work with the running stack, or with the servers that the environment names."""
