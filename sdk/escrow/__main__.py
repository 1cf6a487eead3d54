"""``python -m escrow``: the same as the ``escrow`` command."""

import sys

from escrow.cli import main

if __name__ == "__main__":
    sys.exit(main())
