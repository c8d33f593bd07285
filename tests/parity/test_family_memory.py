"""The planned activation memory of every family against the tensors that autograd saves."""

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
    "efficientnet with relu": Small({**SMALL, "use_relu": True}, 48),
    "mobilenet": Small({"model": "mobilenet"}, 96),
    "mobilenet v3": Small({"model": "mobilenet-v3-small"}, 96),
    "squeezenet": Small({"model": "squeezenet", "use_bypass": True}, 47),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_saves_the_planned_activations(name: str):
    plan, size = NETWORKS[name].plan, NETWORKS[name].size
    images, labels = images_and_labels(SAMPLES, size)
    saved = saved_bytes(build_slice(plan.layers), (images,), labels)
    footprint = activation_footprint(plan.layers, plan.costs, None, is_first=True)
    planned = 4 * SAMPLES * footprint.stashed + unplanned_bytes(plan.layers, SAMPLES)

    assert saved == pytest.approx(planned, rel=0.01)
