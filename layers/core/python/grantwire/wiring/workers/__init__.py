"""The runtimes of the functions that a schedule starts."""
