"""What a plan says that a forward pass keeps, against what autograd saves, in every family."""

import pytest
from support.model_families import Small
from support.networks import build_slice, images_and_labels
from support.saved_tensors import saved_bytes, unplanned_bytes

from convoy.planning.activations import activation_footprint

SAMPLES = 2
SMALL = {"model": "efficientnet-cifar", "dropout_rate": 0.3}
GROUPS = {"norm_type": "group", "norm_num_groups": 4}
NETWORKS = {
    "resnext": Small({"model": "resnext11"}, 16),
    "group norm": Small({"model": "resnet8", **GROUPS}, 16),
    "strided group norm": Small({"model": "resnet8", **GROUPS, "enable_fast_groupnorm": True}, 16),
    "group norm in one pass": Small({"model": "resnet8", **GROUPS, "stable_norm": False}, 16),
    "efficientnet": Small(SMALL, 48),
    "efficientnet with group norm": Small({**SMALL, **GROUPS}, 48),
    "efficientnet without gates": Small({**SMALL, "squeeze_excite": False}, 48),
    "efficientnet with rectifiers": Small({**SMALL, "use_relu": True}, 48),
    "mobilenet": Small({"model": "mobilenet"}, 96),
    "mobilenet v3": Small({"model": "mobilenet-v3-small"}, 96),
    "squeezenet": Small({"model": "squeezenet", "use_bypass": True}, 47),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_keeps_what_its_plan_says(name: str):
    plan, size = NETWORKS[name].plan, NETWORKS[name].size
    images, labels = images_and_labels(SAMPLES, size)
    saved = saved_bytes(build_slice(plan.layers), (images,), labels)
    stored = activation_footprint(plan.layers, plan.costs, None, is_first=True)
    planned = 4 * SAMPLES * stored.stashed + unplanned_bytes(plan.layers, SAMPLES)

    assert saved == pytest.approx(planned, rel=0.01)
