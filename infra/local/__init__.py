"""The local stack: PostgreSQL, NATS and an AWS emulator as plain processes of one checkout.

Nothing here needs Docker, root or an account. Every server binds to 127.0.0.1, keeps its state in one folder
and is ended by the process id that was recorded when it was started.

`python -m infra.local COMMAND` is the entry point. `commands` has one module for each command or small group of
commands, `stack` the whole stack, `deployment` the template on a local AWS, `servers` and `containers` what it runs on,
`toolchain` the installed tools, and `system` processes, files and folders. The bootstrap and the commands that stop the
stack import the standard library only.
"""
