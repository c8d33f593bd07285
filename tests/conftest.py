"""What all tests share: quiet surroundings."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's environment leaks in, and bits do not depend on its cores."""
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.delenv("CONVOY_TEST_FAULTS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
