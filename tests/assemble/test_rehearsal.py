"""A network at work while its feed is measured."""

from pathlib import Path

import torch

from convoy.assemble.open_feed import open_feed
from convoy.assemble.post import posted
from convoy.assemble.rehearsal import Rehearsal
from convoy.config.schema import build_config
from convoy.data.feed import MicroBatch
from convoy.launch.world import World

VALUES = {
    "model": "resnet8",
    "data": "generated",
    "image_size": 12,
    "num_classes": 5,
    "samples": 64,
    "micro_batch_size": 4,
    "gradient_accumulation": 3,
    "threads": 1,
}


def test_a_rehearsal_spends_an_update_and_leaves_its_weights(tmp_path: Path) -> None:
    opened = open_feed(build_config(VALUES))
    with posted(World.alone(), opened.plan) as post:
        rehearsal = Rehearsal(post, opened.source, tmp_path)
        before = [one.clone() for one in rehearsal.weights()]
        images, labels = torch.randn(4, 3, 12, 12), torch.arange(4)
        stream = iter([MicroBatch(images, labels)] * 5)
        rehearsal(stream)

        assert len(list(stream)) == 2
        assert all(map(torch.equal, before, rehearsal.weights()))
