"""The rank of a process is read from environment variables, which are validated."""

import pytest

from convoy.errors import ConfigError
from convoy.launch.world import World, has_launcher

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_variables_of_torchrun_set_rank_and_world_size() -> None:
    world = World.from_environment(TORCHRUN)

    assert world == World(rank=3, world_size=4, local_rank=1, local_world_size=2)
    assert not world.on_one_host


def test_without_a_local_world_size_all_processes_are_on_this_host() -> None:
    environment = {name: text for name, text in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}

    assert World.from_environment(environment).on_one_host


def test_a_single_process_has_world_size_1() -> None:
    assert World.single_process() == World(rank=0, world_size=1, local_rank=0, local_world_size=1)
    assert World.single_process().on_one_host


def test_the_replicas_of_convoy_launch_are_at_most_the_processes() -> None:
    assert World.from_environment(TORCHRUN | {"CONVOY_REPLICAS": "2"}).replicas == 2
    for text in ("0", "5", "two"):
        with pytest.raises(ConfigError, match=r"^CONVOY_REPLICAS is "):
            World.from_environment(TORCHRUN | {"CONVOY_REPLICAS": text})


@pytest.mark.parametrize("name", [name for name in TORCHRUN if name != "LOCAL_WORLD_SIZE"])
def test_a_missing_variable_is_reported_by_name(name: str) -> None:
    environment = {key: text for key, text in TORCHRUN.items() if key != name}

    with pytest.raises(ConfigError, match=f"^{name} is not set"):
        World.from_environment(environment)


@pytest.mark.parametrize("text", ["", "two", "-1", "1.0", " 1", "1_0", "٣", "9" * 1000, "4"])
def test_an_invalid_rank_is_reported(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^RANK is .*") as error:
        World.from_environment(TORCHRUN | {"RANK": text})

    assert len(str(error.value)) < 120


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORLD_SIZE", "0"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "5"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("MASTER_ADDR", " "),
    ],
)
def test_a_value_out_of_range_is_reported(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is "):
        World.from_environment(TORCHRUN | {name: text})


def test_a_launcher_is_detected_by_its_variables() -> None:
    assert has_launcher({"RANK": "0"})
    assert has_launcher({"WORLD_SIZE": "1"})
    assert not has_launcher({"LOCAL_RANK": "0", "MASTER_ADDR": "here"})
