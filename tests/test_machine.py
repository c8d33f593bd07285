"""This machine: idle threads, freed memory, cores, and the workers that fit."""

import ctypes
import os
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy import machine
from convoy.errors import ConfigError
from convoy.machine import (
    SPIN_COUNT,
    available_cores,
    bind_to_cores,
    check_capacity,
    cpu_quota,
    default_threads,
    free_memory_bytes,
    keep_freed_memory,
    limit_openmp_spinning,
    partition_cores,
    threads_per_process,
    usable_core_count,
)


@pytest.fixture
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # restores the variable after the test
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_without_settings")
def test_idle_threads_spin_only_briefly() -> None:
    limit_openmp_spinning()

    assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT


@pytest.mark.usefixtures("_without_settings")
def test_a_spin_count_of_the_user_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    limit_openmp_spinning()

    assert os.environ["GOMP_SPINCOUNT"] == "7"


@pytest.mark.usefixtures("_without_settings")
def test_a_wait_policy_of_the_user_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    limit_openmp_spinning()

    assert "GOMP_SPINCOUNT" not in os.environ


class Library:
    """A C library that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> None:
        self.calls.append((parameter, value))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    fake = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: fake)
    return fake


def test_freed_blocks_stay_in_the_process(library: Library) -> None:
    keep_freed_memory()

    assert library.calls == [(-3, 32 * 2**20), (-1, 2**31 - 1)]


def test_a_malloc_setting_of_the_user_is_not_changed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    keep_freed_memory()

    assert library.calls == []


def test_a_c_library_without_mallopt_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())

    keep_freed_memory()


def test_each_worker_gets_neighboring_cores() -> None:
    assert partition_cores([0, 1, 2, 3], 2) == ((0, 1), (2, 3))
    assert partition_cores([0, 1, 2, 3, 4], 2) == ((0, 1, 2), (3, 4))
    assert partition_cores([3, 5, 7], 1) == ((3, 5, 7),)


def test_more_workers_than_cores_share_them_in_turn() -> None:
    assert partition_cores([4, 9], 5) == ((4,), (9,), (4,), (9,), (4,))


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 70))
def test_cores_are_divided_evenly_and_completely(cores: int, workers: int) -> None:
    shares = partition_cores(range(cores), workers)
    sizes = {len(share) for share in shares}
    uses = [sum(core in share for share in shares) for core in range(cores)]

    assert len(shares) == workers
    assert max(sizes) - min(sizes) <= 1
    assert max(uses) - min(uses) <= 1
    assert min(uses) >= 1
    if workers <= cores:
        assert list(chain(*shares)) == list(range(cores))


def test_available_cores_are_those_of_this_process() -> None:
    assert set(available_cores()) == os.sched_getaffinity(0)


def test_binding_to_missing_cores_is_not_an_error() -> None:
    before = os.sched_getaffinity(0)
    bind_to_cores([100_000])

    assert os.sched_getaffinity(0) == before


@pytest.fixture
def _ten_gigabytes_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   10000000 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP_LIMIT", tmp_path / "max")
    monkeypatch.setattr(machine, "_CGROUP_USAGE", tmp_path / "current")


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_workers_that_fit_are_accepted() -> None:
    check_capacity(64, bytes_per_worker=50_000_000)

    assert free_memory_bytes() == 10_240_000_000


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_too_many_workers_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"^65 workers .* 64 .*--replicas"):
        check_capacity(65)


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_too_much_memory_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"^4 workers need about 12.4 GB .* 10.2 GB are free"):
        check_capacity(4, bytes_per_worker=3_000_000_000)


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("900000000\n")
    (tmp_path / "current").write_text("400000000\n")

    assert free_memory_bytes() == 500_000_000


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_a_container_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "current").write_text("400000000\n")

    assert free_memory_bytes() == 10_240_000_000


@pytest.mark.usefixtures("_ten_gigabytes_free")
def test_unknown_memory_accepts_any_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "meminfo").unlink()
    check_capacity(4, bytes_per_worker=10**15)

    assert free_memory_bytes() is None


def write_cgroup(root: Path, own: str, files: dict[str, str]) -> Path:
    """Write the files of a cgroup hierarchy; return the file that names the process's cgroups."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "own").write_text(own)
    return root / "own"


def test_a_cpu_quota_is_the_smallest_of_the_cgroup_and_its_parents(tmp_path: Path) -> None:
    files = {
        "pod/cpu.max": "150000 100000\n",
        "pod/container/cpu.max": "400000 100000\n",
        "cpu.max": "max 100000\n",
    }
    own = write_cgroup(tmp_path, "0::/pod/container\n", files)

    assert cpu_quota(tmp_path, own) == 1.5


def test_a_quota_of_cgroup_v1_is_read(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    own = write_cgroup(tmp_path, "5:memory:/x\n4:cpu,cpuacct:/docker/not-mounted\n", files)

    assert cpu_quota(tmp_path, own) == 3


@pytest.mark.parametrize("text", ["max 100000", "", "-1", "0 100000", "text 100000"])
def test_without_a_limit_there_is_no_quota(tmp_path: Path, text: str) -> None:
    own = write_cgroup(tmp_path, "0::/\n", {"cpu.max": text})

    assert cpu_quota(tmp_path, own) is None
    assert cpu_quota(tmp_path, tmp_path / "missing") is None


def test_the_quota_limits_threads_but_not_the_cores_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(machine, "available_cores", lambda: tuple(range(8)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: 4.9)

    assert usable_core_count() == 4
    assert default_threads(1) == (4, "CPU quota")
    assert default_threads(3) == (1, "CPU quota")
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.5)
    assert usable_core_count() == 1


def test_omp_num_threads_is_the_number_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: tuple(range(8)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)

    for text, threads in (("3", 3), (" 3,2", 3), ("0", 4), ("many", 4), ("", 4), ("٣", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert default_threads(2)[0] == threads, text
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads(2)[1] == "OMP_NUM_THREADS"
    assert threads_per_process(5, 2) == 5  # --threads wins
