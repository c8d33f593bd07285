"""How the threads of one process wait for each other, decided before torch is loaded.

By default OpenMP's threads spin at the end of every operation. As soon as another process wants one
of the cores, everybody spins for somebody who is not running: with two other processes on two cores
ResNet-14 trained at 16 images/s spinning and at 320 sleeping (docs/benchmarks.md).
"""

import os


def wait_asleep() -> None:
    """Threads that wait give up their core; the user's own setting wins."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
