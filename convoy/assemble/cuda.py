"""What some options do on CUDA alone: settings of torch, and variables that cuDNN and NCCL read.

Written by their documentation; there was no such device to try it on.
"""

import os

import torch

from convoy.config.schema import RunConfig

MEBIBYTE = 2**20
ALGORITHMS = {"auto": None, "broadcast": "Tree"}  # any other is a way around a ring


def prepare_cuda(config: RunConfig, stage: int, memory: int) -> None:
    """Before anything runs on the device. `memory` are its bytes."""
    # cuDNN and NCCL look at their variables when they are first used; a user's own stay.
    for name, value in variables(config, stage, memory).items():
        os.environ.setdefault(name, value)
    torch.backends.cudnn.benchmark = config.device.exchange_memory_target == "cycles"
    wish = config.precision.half_partial
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = wish
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = wish


def variables(config: RunConfig, stage: int, memory: int) -> dict[str, str]:
    """What the environment has to say."""
    found = {}
    shares = config.memory.available_memory_proportion
    if shares:
        share = shares[stage] if len(shares) > 1 else shares[0]
        found["CUDNN_CONV_WSCAP_DBG"] = str(max(1, int(share * memory / MEBIBYTE)))
    algorithm = ALGORITHMS.get(config.replica.gcl_method, "Ring")
    if algorithm is not None:
        found["NCCL_ALGO"] = algorithm
    return found
