"""Optimizer state in a mapped file: the same values, and no memory between updates."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from convoy.config.sections.training import OptimizerConfig
from convoy.errors import StorageError
from convoy.numerics.flat import FlatParameters
from convoy.optim.optimizer import (
    MmapStorage,
    Optimizer,
    PinnedHostStorage,
    StateStorage,
    make_state_storage,
)
from convoy.optim.update_rules import Sgd, StepContext

ELEMENTS = 1 << 22  # 16 MiB


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def sgd(storage: StateStorage | None = None) -> Optimizer:
    weight = torch.nn.Parameter(torch.randn(ELEMENTS // 4, 4, generator=torch.Generator()))
    return Optimizer(FlatParameters({"weight": weight}), Sgd(OptimizerConfig()), storage=storage)


def test_new_state_is_zeros_with_the_dtype_of_the_weights(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        vector = MmapStorage(tmp_path).zeros(100, torch.empty(0, dtype=dtype))

        assert vector.dtype == dtype and vector.shape == (100,) and not vector.any()


def test_eviction_frees_memory_and_preserves_the_values(tmp_path: Path) -> None:
    storage = MmapStorage(tmp_path)
    vector = storage.zeros(ELEMENTS, torch.empty(0))
    expected = torch.arange(ELEMENTS, dtype=torch.float32)
    vector.copy_(expected)
    before = resident()
    storage.evict()
    freed = before - resident()

    assert freed > 0.9 * ELEMENTS * 4
    assert torch.equal(vector, expected)


def test_mmap_state_gives_the_bits_of_in_memory_state(tmp_path: Path) -> None:
    in_memory, mapped = sgd(), sgd(MmapStorage(tmp_path))
    for update in range(3):
        rng = torch.Generator().manual_seed(update)
        gradient = torch.randn(ELEMENTS, generator=rng)
        in_memory.step(gradient.clone(), StepContext(0.1))
        mapped.step(gradient, StepContext(0.1))

    assert torch.equal(in_memory.flat_params.values, mapped.flat_params.values)
    assert torch.equal(in_memory.slots["velocity"], mapped.slots["velocity"])


def test_no_state_is_resident_between_updates(tmp_path: Path) -> None:
    optimizer, gradient = sgd(MmapStorage(tmp_path)), torch.ones(ELEMENTS)
    optimizer.step(gradient, StepContext(0.1))
    before = resident()
    assert bool((optimizer.slots["velocity"] > 0.5).all())  # loads the state
    loaded = resident() - before

    assert loaded > 0.9 * ELEMENTS * 4


def test_the_state_file_is_unlinked(tmp_path: Path) -> None:
    vector = MmapStorage(tmp_path).zeros(1000, torch.empty(0))
    vector.fill_(1.0)

    assert list(tmp_path.iterdir()) == []


def test_an_empty_range_needs_no_file(tmp_path: Path) -> None:
    storage = MmapStorage(tmp_path)

    assert storage.zeros(0, torch.empty(0)).shape == (0,)
    storage.evict()


def test_a_full_disk_is_reported_before_the_first_update(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    too_many = disk.f_blocks * disk.f_frsize  # four bytes each: four times the disk

    with pytest.raises(StorageError, match="--offload-optimizer"):
        MmapStorage(tmp_path).zeros(too_many, torch.empty(0))


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot store 400 bytes"):
        MmapStorage(tmp_path / "missing").zeros(100, torch.empty(0))


def test_offloaded_state_is_in_host_memory_or_in_a_file(tmp_path: Path) -> None:
    cpu, device = torch.device("cpu"), torch.device("cuda", 0)

    assert isinstance(make_state_storage(cpu, True, tmp_path), MmapStorage)
    assert isinstance(make_state_storage(device, True, tmp_path), PinnedHostStorage)
    for target in (cpu, device):
        assert type(make_state_storage(target, False, tmp_path)) is StateStorage


def test_host_storage_allocates_zeros_on_the_cpu() -> None:
    vector = PinnedHostStorage().zeros(100, torch.empty(0, dtype=torch.float64, device="meta"))

    assert vector.device.type == "cpu" and vector.dtype == torch.float64
    assert vector.shape == (100,) and not vector.any()


def test_host_state_gives_the_bits_of_device_state() -> None:
    on_device, hosted = sgd(), sgd(PinnedHostStorage())
    for update in range(3):
        gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(update))
        on_device.step(gradient.clone(), StepContext(0.1))
        hosted.step(gradient, StepContext(0.1))

    assert torch.equal(on_device.flat_params.values, hosted.flat_params.values)
