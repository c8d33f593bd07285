"""A network as a torch.export program: a graph of torch's own operations with its weights."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


def write_program(path: Path, network: nn.Module, images: Tensor, any_batch: bool) -> None:
    """For batches like the example, or of any number of images."""
    batch = {0: torch.export.Dim.DYNAMIC} if any_batch else None
    with _quietly():
        program = torch.export.export(network, (images,), dynamic_shapes=(batch,), strict=False)
        torch.export.save(program, path)


def answers_of_program(path: Path, images: Tensor) -> Tensor:
    """What the program in a file makes of some images."""
    with _quietly():
        made: Tensor = torch.export.load(path).module()(images)
        return made


@contextmanager
def _quietly() -> Iterator[None]:
    """torch warns of its own deprecations there."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
