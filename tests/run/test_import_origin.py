"""What a run says about the network that its pretrained weights come from."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.run.import_export import LoadedWeights, origin_notes
from convoy.weights.library_networks import find_candidates
from convoy.weights.name_mapping import FittedWeights


def notes(source: str, library: str, model: str, **options: Any) -> list[str]:
    config = build_config({"model": model, "data": "generated", **options})
    candidates = find_candidates(config, 1000, [library])
    fitted = FittedWeights({}, library, [], None)
    return origin_notes(LoadedWeights(source, fitted, candidates), config)


def test_a_run_with_the_same_network_has_no_note() -> None:
    assert notes("x.pth", "torchvision", "efficientnet-b4") == []
    assert notes("x.pth", "torchvision", "efficientnet-b5", norm_eps=0.001) == []
    assert notes("dir/efficientnet_b0_ra.pth", "timm", "efficientnet-b0") == []


@pytest.mark.parametrize(
    ("source", "library", "model", "facts"),
    [
        ("x.pth", "torchvision", "efficientnet-b5", ["efficientnet_b5", "--norm-eps 0.001, not"]),
        (
            "hf:timm/tf_efficientnet_b0.in1k",
            "timm",
            "efficientnet-b0",
            ["tf_efficientnet_b0", "--conv-padding same, not symmetric", "--norm-eps 0.001, not"],
        ),
        ("x.pth", "timm", "efficientnet-b0", ["efficientnet_b0 and timm's tf_efficientnet_b0"]),
    ],
)
def test_a_run_with_another_network_has_a_note(
    source: str, library: str, model: str, facts: list[str]
) -> None:
    (note,) = notes(source, library, model)

    assert [fact for fact in facts if fact not in note] == []
