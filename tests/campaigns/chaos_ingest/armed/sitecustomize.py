"""On the PYTHONPATH of `escrow run`, so that one life of the edge can be armed while the supervisor runs on.

The supervisor gives every edge the same environment. An edge that starts takes the file CHAOS_ARM away, where there is one, and
with it the failpoint that is written in it: it is the one that will die there. The campaign finds its pid in the file's new name.
"""

import os
import sys


def take() -> None:
    path = os.environ.get("CHAOS_ARM", "")
    if path and "ingest.server" in sys.orig_argv:
        try:
            os.rename(path, f"{path}.{os.getpid()}")
        except OSError:
            return
        with open(f"{path}.{os.getpid()}") as armed:
            os.environ["ESCROW_FAILPOINT"] = armed.read()
        os.rename(f"{path}.{os.getpid()}", f"{path}.taken.{os.getpid()}")


take()
