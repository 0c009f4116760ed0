"""The parts that need a container engine: LocalStack and `sam local`."""
