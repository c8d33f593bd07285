"""State in a mapped file: the same numbers, and no memory between updates."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.errors import StorageError
from convoy.numerics.flat import FlatWeights
from convoy.optim.optimizer import (
    HostMemory,
    MappedFile,
    Optimizer,
    StateStorage,
    storage_for,
)
from convoy.optim.update_rules import Sgd, StepContext

ELEMENTS = 1 << 22  # 16 MiB


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def sgd(storage: StateStorage | None = None) -> Optimizer:
    weight = torch.nn.Parameter(torch.randn(ELEMENTS // 4, 4, generator=torch.Generator()))
    return Optimizer(FlatWeights({"weight": weight}), Sgd(OptimizerConfig()), storage=storage)


def test_a_new_vector_is_zeros_of_the_kind_of_the_weights(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        vector = MappedFile(tmp_path).vector(100, torch.empty(0, dtype=dtype))

        assert vector.dtype == dtype and vector.shape == (100,) and not vector.any()


def test_resting_gives_the_memory_back_and_keeps_the_numbers(tmp_path: Path) -> None:
    storage = MappedFile(tmp_path)
    vector = storage.vector(ELEMENTS, torch.empty(0))
    expected = torch.arange(ELEMENTS, dtype=torch.float32)
    vector.copy_(expected)
    before = resident()
    storage.evict()
    given_back = before - resident()

    assert given_back > 0.9 * ELEMENTS * 4
    assert torch.equal(vector, expected)


def test_updates_from_a_file_give_the_bits_of_updates_in_memory(tmp_path: Path) -> None:
    kept, mapped = sgd(), sgd(MappedFile(tmp_path))
    for update in range(3):
        chance = torch.Generator().manual_seed(update)
        gradient = torch.randn(ELEMENTS, generator=chance)
        kept.step(gradient.clone(), StepContext(0.1))
        mapped.step(gradient, StepContext(0.1))

    assert torch.equal(kept.flat.values, mapped.flat.values)
    assert torch.equal(kept.slots["velocity"], mapped.slots["velocity"])


def test_nothing_of_the_state_is_resident_between_updates(tmp_path: Path) -> None:
    optimizer, gradient = sgd(MappedFile(tmp_path)), torch.ones(ELEMENTS)
    optimizer.step(gradient, StepContext(0.1))
    before = resident()
    assert bool((optimizer.slots["velocity"] > 0.5).all())  # reads all of it in
    read_in = resident() - before

    assert read_in > 0.9 * ELEMENTS * 4


def test_the_file_leaves_no_trace_in_its_folder(tmp_path: Path) -> None:
    vector = MappedFile(tmp_path).vector(1000, torch.empty(0))
    vector.fill_(1.0)

    assert list(tmp_path.iterdir()) == []


def test_an_empty_range_needs_no_file(tmp_path: Path) -> None:
    storage = MappedFile(tmp_path)

    assert storage.vector(0, torch.empty(0)).shape == (0,)
    storage.evict()


def test_a_full_disk_is_told_before_the_first_update(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    too_many = room.f_blocks * room.f_frsize  # bytes of the whole disk, times four

    with pytest.raises(StorageError, match="--offload-optimizer"):
        MappedFile(tmp_path).vector(too_many, torch.empty(0))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot take 400 bytes"):
        MappedFile(tmp_path / "missing").vector(100, torch.empty(0))


def test_state_of_a_device_goes_to_the_host_and_that_of_a_cpu_into_a_file(tmp_path: Path) -> None:
    cpu, device = torch.device("cpu"), torch.device("cuda", 0)

    assert isinstance(storage_for(cpu, True, tmp_path), MappedFile)
    assert isinstance(storage_for(device, True, tmp_path), HostMemory)
    for where in (cpu, device):
        assert type(storage_for(where, False, tmp_path)) is StateStorage


def test_host_memory_holds_zeros_off_the_device() -> None:
    vector = HostMemory().vector(100, torch.empty(0, dtype=torch.float64, device="meta"))

    assert vector.device.type == "cpu" and vector.dtype == torch.float64
    assert vector.shape == (100,) and not vector.any()


def test_updates_from_host_memory_give_the_bits_of_resident_ones() -> None:
    kept, hosted = sgd(), sgd(HostMemory())
    for update in range(3):
        gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(update))
        kept.step(gradient.clone(), StepContext(0.1))
        hosted.step(gradient, StepContext(0.1))

    assert torch.equal(kept.flat.values, hosted.flat.values)
