"""All processes must start with the same options and data."""

from typing import Any

import pytest
import torch

from convoy.config.schema import RunConfig, build_config
from convoy.errors import ConfigError
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.run.starting_point import check_same_on_all_ranks


class RecordingControlGroup(ControlGroup):
    """A control group that stores the tensors of all ranks and returns them."""

    def __init__(self) -> None:
        self.gathered: list[torch.Tensor] = []

    def all_gather_tensor(
        self, point: SyncPoint, update: int, tensor: torch.Tensor
    ) -> list[torch.Tensor]:
        assert (point, update) == (SyncPoint.START, 0)
        self.gathered.append(tensor)
        return self.gathered


def config(**values: Any) -> RunConfig:
    return build_config(values)


def check_two_ranks(first: RunConfig, second: RunConfig, samples: tuple[int, int] = (9, 9)) -> None:
    control = RecordingControlGroup()
    check_same_on_all_ranks(control, first, samples[0])
    check_same_on_all_ranks(control, second, samples[1])


@pytest.mark.parametrize(
    "values",
    [
        {"lr": 0.3},
        {"pipeline_schedule": "grouped"},
        {"enable_recompute": True},
        {"ckpts_per_epoch": 2},
        {"logs_per_epoch": 9},
        {"valid_batch_size": 3},
        {"max_cross_replica_buffer_size": 2048},
    ],
)
def test_a_different_option_on_one_rank_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="rank 1 has different options or data than rank 0"):
        check_two_ranks(config(), config(**values))


def test_different_data_on_one_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="the same data"):
        check_two_ranks(config(), config(), samples=(9, 10))


def test_paths_may_differ_between_hosts() -> None:
    first = config(
        data_dir="/a", log_dir="x", progress="plain", init_path="/a/run", pretrained="/a/w.pth"
    )

    check_two_ranks(
        first,
        config(data_dir="/b", name="n", name_suffix="s", init_path="/b/run", pretrained="/b/w.pth"),
    )
