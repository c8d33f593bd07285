"""Fixtures and settings of all tests."""

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from convoy.launch.processes import worker_context

# Every test run draws the same cases; `make fuzz` draws new ones. There are no deadlines, because
# the machine may be busy.
NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", NO_DEADLINE, derandomize=True)
settings.register_profile("random", NO_DEADLINE, derandomize=False)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _isolated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the environment of this machine or its number of cores."""
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.delenv("CONVOY_TEST_FAULTS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _default_signal_handlers() -> None:
    """Child processes inherit ignored signals, and a shell ignores SIGINT for background jobs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _empty_inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The default cache may contain code for another CPU, or incomplete files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forkserver(_default_signal_handlers: None, _empty_inductor_cache: None) -> None:
    """Start one forkserver for the workers of all tests, with all packages imported.

    Otherwise the first test decides which packages it imports.
    """
    worker_context(["convoy.run.phase", "convoy.cli.train", "convoy.cli.prove"])
