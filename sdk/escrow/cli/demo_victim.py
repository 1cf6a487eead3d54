"""The process that ``escrow demo`` kills: it sends a half, commits its database, and never gets to say COMMIT.

python -m escrow.cli.demo_victim URL DATABASE NUMBER KEY NAME=VALUE …      prints the transaction id, then waits for its end
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Sequence

from escrow._transport import tls_context
from escrow.api import Api
from escrow.barrier import Barrier
from escrow.messages import Message


def main(argv: Sequence[str]) -> None:
    url, database, number, key, *properties = argv
    given = dict(each.split("=", 1) for each in properties)
    ca_file = os.environ.get("ESCROW_CA_FILE")
    with Api(url, token=os.environ.get("ESCROW_TOKEN") or None, tls=tls_context(ca_file=ca_file) if ca_file else None) as api:
        [half] = api.send_halves("demo-crashing-shop", [Message("demo-orders", f"order {number}", key, "crash", given)])
    connection = sqlite3.connect(database, timeout=5)
    Barrier().record(connection, half.id)
    connection.commit()
    print(half.id, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
