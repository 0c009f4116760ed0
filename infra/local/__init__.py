"""The local stack: PostgreSQL, NATS and an AWS emulator as plain processes of one checkout.

It needs no Docker, no root and no AWS account; only LocalStack and `sam local` need Docker. Every server listens on
127.0.0.1, keeps its state in one folder, and is stopped by its recorded process id.

The entry point is `python -m infra.local COMMAND`. The packages are:

- `commands`: one module for each command or small group of commands
- `stack`: the complete stack
- `deployment`: the template on a local AWS
- `servers` and `containers`: the processes and containers that the stack runs on
- `toolchain`: the installed tools
- `system`: processes, files and folders

The bootstrap and the commands that stop the stack import the standard library only.
"""
