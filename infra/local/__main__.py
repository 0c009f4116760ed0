"""`python3 -m infra.local COMMAND`, which every target of the Makefile calls."""

import sys

from infra.local.toolchain import interpreter

if __name__ == "__main__":
    interpreter.check()
    from infra.local.main import main  # an older Python cannot parse it

    sys.exit(main(sys.argv[1:]))
