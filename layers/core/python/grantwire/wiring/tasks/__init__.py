"""The runtimes of the functions that an operator or a deployment invokes."""
