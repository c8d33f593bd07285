"""A network as a torch.export program: a graph of torch's own operations with its weights."""

from pathlib import Path

import torch
from torch import Tensor

from convoy.models.exporting import Classifier, quietly


def write_program(path: Path, network: Classifier, images: Tensor, any_batch: bool) -> None:
    """For batches like the example, or of any number of images."""
    batch = {0: torch.export.Dim.DYNAMIC} if any_batch else None
    with quietly():
        program = torch.export.export(network, (images,), dynamic_shapes=(batch,), strict=False)
        torch.export.save(program, path)


def answers_of_program(path: Path, images: Tensor) -> Tensor:
    """What the program in a file makes of some images."""
    with quietly():
        made: Tensor = torch.export.load(path).module()(images)
        return made
