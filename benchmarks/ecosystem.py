"""What users of the client feel before anything is sent. `make bench-ecosystem`; no service is needed.

import_ms     `import escrow` in a fresh interpreter, over the same interpreter without it: processor time, median
producer_ms   the same with the classes for threads
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from benchmarks.support import alternate, load, report, spread

ROUNDS = 21


def cpu_ms(program: str) -> float:
    """Processor time of an interpreter that runs this and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    print(load())
    programs = {"bare": "pass", "import": "import escrow", "producer": "import escrow; escrow.Producer, escrow.Consumer"}
    rounds = alternate(ROUNDS, *[lambda program=program: cpu_ms(program) for program in programs.values()])
    times = dict(zip(programs, rounds, strict=True))
    for name, values in times.items():
        print(f"{name}, ms of processor time: {spread(values)}")
    bare = statistics.median(times["bare"])
    report(
        {
            "ecosystem.import_ms": statistics.median(times["import"]) - bare,
            "ecosystem.producer_ms": statistics.median(times["producer"]) - bare,
        }
    )


if __name__ == "__main__":
    main()
