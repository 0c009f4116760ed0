"""Locks that processes on several machines share; see `interface` for what a lock promises."""
