"""Waiting threads sleep, unless the user says otherwise."""

import os

import pytest

from convoy.launch.waiting import wait_asleep


def test_waiting_threads_give_up_their_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    wait_asleep()

    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_users_own_policy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_asleep()

    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
