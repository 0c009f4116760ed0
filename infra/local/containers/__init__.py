"""What needs a container engine: LocalStack and `sam local`."""
