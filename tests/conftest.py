"""What all tests share: quiet surroundings."""

import pytest
import torch
from hypothesis import settings

from convoy.launch.processes import nursery

# A change is judged by the same drawn cases as the one before it; `make fuzz` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("wandering", derandomize=False)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's environment leaks in, and bits do not depend on its cores."""
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.delenv("CONVOY_TEST_FAULTS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _workers_start_quickly() -> None:
    """One server for the workers of all tests, with all rooms loaded; it starts in the background.

    Whichever test came first would otherwise decide what it has loaded.
    """
    nursery(["convoy.assemble.runs", "convoy.cli.train", "convoy.cli.resume", "convoy.cli.prove"])
