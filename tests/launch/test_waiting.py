"""Waiting threads spin briefly, unless the user says otherwise."""

import os

import pytest

from convoy.launch.waiting import SPINS, wait_briefly


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is put back whatever the test does
        monkeypatch.delenv(name)


def test_waiting_threads_soon_give_up_their_core() -> None:
    wait_briefly()

    assert os.environ["GOMP_SPINCOUNT"] == SPINS


def test_the_users_own_count_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    wait_briefly()

    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_the_users_own_policy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_briefly()

    assert "GOMP_SPINCOUNT" not in os.environ
