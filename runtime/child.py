"""`python -m runtime.child PARENT MODULE [ARGUMENT …]`: run a module as a part of the service; it dies with its parent.

The supervisor starts its parts through here, so that a supervisor that was killed leaves none of them behind.
"""

from __future__ import annotations

import runpy
import sys

from runtime.processes import die_with_parent

USELESS = 2


def main() -> None:
    parent, module = int(sys.argv[1]), sys.argv[2]
    die_with_parent(parent)
    sys.argv = [module, *sys.argv[3:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ImportError as error:  # an incomplete installation: restarting does not help
        print(f"escrow: {error}", file=sys.stderr)
        sys.exit(USELESS)


if __name__ == "__main__":
    main()
