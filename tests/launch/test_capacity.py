"""More workers than the machine can hold are refused, with the numbers."""

from pathlib import Path

import pytest

from convoy.errors import ConfigError
from convoy.launch import capacity
from convoy.launch.capacity import free_bytes, refuse_too_many


@pytest.fixture(autouse=True)
def ten_gigabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   10000000 kB\n")
    monkeypatch.setattr(capacity, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(capacity, "_LIMIT", tmp_path / "max")
    monkeypatch.setattr(capacity, "_USED", tmp_path / "current")


def test_what_fits_is_welcome() -> None:
    refuse_too_many(64, bytes_each=50_000_000)

    assert free_bytes() == 10_240_000_000


def test_too_many_workers_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"^65 workers are more than the 64 .*--replicas"):
        refuse_too_many(65)


def test_too_much_memory_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"^4 workers need about 12.4 GB .* 10.2 GB are free"):
        refuse_too_many(4, bytes_each=3_000_000_000)


def test_who_insists_is_let_through() -> None:
    refuse_too_many(1000, bytes_each=10**12, force=True)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("900000000\n")
    (tmp_path / "current").write_text("400000000\n")

    assert free_bytes() == 500_000_000


def test_a_container_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "current").write_text("400000000\n")

    assert free_bytes() == 10_240_000_000


def test_where_nobody_tells_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meminfo").unlink()
    refuse_too_many(4, bytes_each=10**15)

    assert free_bytes() is None
