"""Processes agree on a stop reason and gather their results in a fixed order."""

import pytest
import torch

from convoy.engine.update import UpdateShare
from convoy.events import STOP_REASONS
from convoy.parallel.control import ControlGroup, SyncPoint


class OtherProcesses(ControlGroup):
    """A control group whose other processes have these stop requests."""

    def __init__(self, requests: list[int]) -> None:
        self.requests = requests

    def all_gather(self, point: SyncPoint, update: int, request: int = 0) -> list[int]:
        assert (point, update) == (SyncPoint.STOP, 7)
        return [request, *self.requests]


def share(requests: list[int]) -> UpdateShare:
    return UpdateShare(range(2), OtherProcesses(requests), (0,))


@pytest.mark.parametrize("reason", STOP_REASONS)
def test_one_stop_request_stops_all_processes(reason: str) -> None:
    request = STOP_REASONS.index(reason) + 1

    assert share([0, 0]).agree_on_stop(reason, 7) == reason
    assert share([0, request]).agree_on_stop(None, 7) == reason


def test_without_a_stop_request_no_process_stops() -> None:
    assert share([0, 0]).agree_on_stop(None, 7) is None


def test_all_processes_agree_on_one_stop_reason() -> None:
    assert share([3, 2]).agree_on_stop("limit", 7) == "interrupted"
    assert share([1, 2]).agree_on_stop("interrupted", 7) == "interrupted"


class Rows(ControlGroup):
    """Two replicas of two stages; the last stages have results."""

    def all_gather_tensor(
        self, point: SyncPoint, update: int, tensor: torch.Tensor
    ) -> list[torch.Tensor]:
        assert (point, update) == (SyncPoint.METRICS, 2)
        first, second = torch.arange(4.0).view(4, 1), torch.arange(10.0, 14.0).view(4, 1)
        return [tensor, first, tensor, second]


def test_results_are_in_order_of_updates_replicas_and_micro_batches() -> None:
    rows = UpdateShare(range(2), Rows(), (1, 3)).all_gather_rows(torch.zeros(4, 1), 2, 2)

    assert rows.flatten().tolist() == [0, 1, 10, 11, 2, 3, 12, 13]
