"""What all tests share: quiet surroundings."""

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from convoy.launch.processes import worker_context

# A change is judged by the same drawn cases as the one before it; `make fuzz` draws new ones. No
# case is judged by how long it takes: the machine may be busy.
ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", ANY_SPEED, derandomize=True)
settings.register_profile("wandering", ANY_SPEED, derandomize=False)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's environment leaks in, and bits do not depend on its cores."""
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.delenv("CONVOY_TEST_FAULTS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Also by what is started here: a shell lets its background jobs ignore an interrupt, and
    `nohup` a hangup, and so would their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _compiled_programs_are_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch's usual cache may hold programs for other vector instructions, or half a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _workers_start_quickly(_signals_are_heard: None, _compiled_programs_are_our_own: None) -> None:
    """One server for the workers of all tests, with all rooms loaded; it starts in the background.

    Whichever test came first would otherwise decide what it has loaded.
    """
    worker_context(["convoy.run.phase", "convoy.cli.train", "convoy.cli.prove"])
