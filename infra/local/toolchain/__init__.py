"""The tools of a checkout: interpreter, virtual environments, locked requirements and generated code."""
