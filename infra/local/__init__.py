"""The local stack: PostgreSQL, NATS and an AWS emulator as plain processes of one checkout.

Nothing here needs Docker, root or an account. Every server binds to 127.0.0.1, keeps its state in one folder
and is ended by the process id that was recorded when it was started.
"""
