"""Freed memory is kept, unless the user says otherwise."""

import ctypes

import pytest

from convoy.launch.memory import keep_freed_memory


class Library:
    """A C library that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> None:
        self.told.append((parameter, value))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    return made


def test_large_blocks_stay_in_the_process(library: Library) -> None:
    keep_freed_memory()

    assert library.told == [(-3, 32 * 2**20), (-1, 2**31 - 1)]


def test_the_users_own_setting_stays(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    keep_freed_memory()

    assert library.told == []


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())

    keep_freed_memory()
