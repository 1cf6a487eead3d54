"""The extra is apart: a client without Spark notices nothing of it."""

from __future__ import annotations

import subprocess
import sys

LOOK = "import sys, escrow, escrow.cli; print([name for name in ('pyspark', 'pyarrow', 'escrow.spark') if name in sys.modules])"


def test_importing_the_client_imports_no_spark():
    ran = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
