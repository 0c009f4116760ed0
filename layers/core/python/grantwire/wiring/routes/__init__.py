"""The runtimes of the functions behind API Gateway."""
