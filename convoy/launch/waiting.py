"""How the threads of one process wait for each other, decided before torch is loaded.

OpenMP's threads spin for milliseconds at the end of every operation. As soon as another process
wants one of the cores, everybody spins for somebody who is not running, and training all but stops.
A short spin costs nothing on a quiet machine and gives the core away on a busy one. The figures are
in docs/benchmarks.md.
"""

import os

SPINS = "10000"


def wait_briefly() -> None:
    """Spin shortly, then sleep; the user's own setting wins."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
