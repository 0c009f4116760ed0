"""The `grantwire` command: operate Grantwire over its HTTP API, and the local stack of a checkout.

The package imports nothing of the service. Modules of `commands` define the options and print; the others do the work.
"""

VERSION = "0.1.0"
