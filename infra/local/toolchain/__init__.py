"""The tools of a checkout: the interpreter, virtual environments, locked requirements, generated code."""
