"""What both exporters of torch want: a network with one way in and one way out, and silence."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Classifier(nn.Module):
    """A whole network as other programs want it: images in, logits out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor
        (logits,) = self.network(images)
        return logits


@contextmanager
def quietly() -> Iterator[None]:
    """The exporters tell of packages they could use and of their own deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
