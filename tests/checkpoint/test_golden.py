"""Stored checkpoints of format 1, which every version must load."""

from pathlib import Path

import pytest
import torch
from support.checkpoint_samples import fingerprint, names

from convoy.checkpoint.reading import load, verify
from convoy.checkpoint.store import CheckpointStore

GOLDEN = Path(__file__).with_name("golden")
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

DIGESTS = {
    "update-0": ["2d3718f4cfacda434eba430d17af66acc52187b7141afbf7793dcc25b4349410"]
    + [EMPTY_SHA256] * 2,
    "update-12": [
        "4fdd1a01cdddfb980b982af63c74ffaf49797ab9cda6867d13012ab137299616",
        "ab879dafb077b23c10208e5d93d76b25d370f987f3a012695d60902e44478ff2",
        "6a69cd73377c420223d372386f22708b3789d96aac26d15b7c3a5c005a8eb34a",
    ],
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_golden_checkpoint_is_loaded_bit_exactly(name: str):
    assert fingerprint(load(GOLDEN / name))[:3] == DIGESTS[name]


def test_a_golden_checkpoint_has_the_expected_contents():
    contents = load(GOLDEN / "update-12")

    assert contents.model["stem.bn.running_mean"].tolist() == [0.5, -0.25]
    assert contents.model["head.weight"].dtype == torch.bfloat16
    assert contents.model["head.größe"].shape == (0, 2)
    assert contents.optimizer["head.weight/step"].item() == 12
    assert contents.averages["stem.conv.weight"].dtype == torch.float64
    assert contents.state == {
        "update": 12,
        "epoch": 1.5,
        "position": 192,
        "seed": 2**64 - 1,
        "loss_scale": 32768.0,
        "schedule": {"position": 12},
        "meters": [0.1, None, True],
        "config": "größe",
        "torch": "2.13.0",
    }


@pytest.mark.parametrize("name", DIGESTS)
def test_writing_the_golden_contents_gives_the_golden_bytes(name: str, tmp_path: Path):
    contents = load(GOLDEN / name)
    written = CheckpointStore(tmp_path).save(contents)

    assert names(written) == names(GOLDEN / name)
    assert verify(written).files == verify(GOLDEN / name).files
