"""CUDA options become settings of cuDNN, NCCL and torch."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from convoy.config.schema import build_config
from convoy.run.process import cuda_environment, prepare_cuda

MEMORY = 16 * 2**30


@pytest.fixture(autouse=True)
def restored_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    matmul = torch.backends.cuda.matmul
    before = torch.backends.cudnn.benchmark, matmul.allow_fp16_reduced_precision_reduction
    yield
    torch.backends.cudnn.benchmark, matmul.allow_fp16_reduced_precision_reduction = before


@pytest.mark.parametrize(
    ("values", "stage", "expected"),
    [
        ({}, 0, {}),
        ({"available_memory_proportion": (0.25,)}, 3, {"CUDNN_CONV_WSCAP_DBG": "4096"}),
        ({"available_memory_proportion": (0.5, 0.125)}, 1, {"CUDNN_CONV_WSCAP_DBG": "2048"}),
        ({"available_memory_proportion": (1e-9,)}, 0, {"CUDNN_CONV_WSCAP_DBG": "1"}),
        ({"gcl_method": "clockwise_ring"}, 0, {"NCCL_ALGO": "Ring"}),
        ({"gcl_method": "broadcast"}, 0, {"NCCL_ALGO": "Tree"}),
    ],
)
def test_an_option_becomes_an_environment_variable(
    values: dict[str, Any], stage: int, expected: dict[str, str]
) -> None:
    assert cuda_environment(build_config(values), stage, MEMORY) == expected


@pytest.mark.parametrize(("target", "benchmarks"), [("cycles", True), ("memory", False)])
def test_optimizing_for_cycles_enables_the_cudnn_benchmark(target: str, benchmarks: bool) -> None:
    prepare_cuda(build_config({"exchange_memory_target": target}), 0, MEMORY)

    assert torch.backends.cudnn.benchmark is benchmarks


@pytest.mark.parametrize("enabled", [True, False])
def test_half_partials_are_used_only_when_enabled(enabled: bool) -> None:
    prepare_cuda(build_config({"half_partial": enabled}), 0, MEMORY)

    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is enabled


def test_a_variable_of_the_user_is_not_changed() -> None:
    os.environ["NCCL_ALGO"] = "Tree"
    prepare_cuda(build_config({"gcl_method": "clockwise_ring"}), 0, MEMORY)

    assert os.environ["NCCL_ALGO"] == "Tree"
