"""The commands of `python -m infra.local`: one module for each command or small group of commands."""
