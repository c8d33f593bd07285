"""The network of a configuration: image size, classes, and micro-batches it rejects."""

import pytest
import torch
import torch.nn.functional as F
from support.networks import build_slice, images_and_labels

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.models.network import plan_network


@pytest.mark.parametrize(
    ("options", "size", "classes"),
    [
        ({"model": "resnet8", "data": "cifar10"}, 32, 10),
        ({"model": "resnet50", "data": "cifar100"}, 32, 100),
        ({"model": "resnet8", "data": "shapes", "image_size": 12}, 12, 10),
        ({"model": "resnet8", "data": "generated"}, 32, 10),
        ({"model": "resnet50", "data": "generated"}, 224, 1000),
        ({"model": "resnet50", "data": "synthetic", "image_size": 31, "num_classes": 7}, 31, 7),
    ],
)
def test_size_and_classes_follow_data_and_model_unless_set(
    options: dict[str, str | int], size: int, classes: int
):
    plan = plan_network(build_config(options))

    assert (plan.image_size, plan.classes) == (size, classes)
    assert (plan.costs[0].input_shapes[0].size, plan.costs[-1].output_shapes[0].channels) == (
        size,
        classes,
    )


def test_a_network_is_the_sum_of_its_layers():
    plan = plan_network(build_config({"model": "resnet20", "data": "cifar10"}))

    assert plan.parameters == sum(cost.parameters for cost in plan.costs) == 269_722
    assert plan.macs == sum(cost.macs for cost in plan.costs)
    assert [cost.name for cost in plan.costs] == [layer.name for layer in plan.layers]


def test_batch_norm_over_one_value_is_refused_with_a_fix():
    options = {"model": "resnet18", "data": "shapes", "image_size": 17}
    with pytest.raises(ConfigError) as refused:
        plan_network(build_config(options)).check_micro_batch(1)

    message = str(refused.value)
    assert "layer4/0/bn1 gets 1 pixel of 1 image" in message
    assert "--micro-batch-size 1, 17 × 17 images" in message
    assert "use --micro-batch-size 2 or --norm-type group" in message


@pytest.mark.parametrize("size", [17, 18, 31, 32, 33])
@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("kind", ["batch", "group", "none"])
def test_exactly_the_micro_batches_that_torch_cannot_train_are_refused(
    size: int, micro: int, kind: str
):
    options = {"model": "resnet18", "data": "shapes", "image_size": size, "norm_type": kind}
    plan = plan_network(build_config(options))
    with torch.device("meta"):
        network = build_slice(plan.layers)
        images = torch.empty(micro, 3, size, size)
        try:
            network(images)
            torch_accepts = True
        except ValueError:
            torch_accepts = False
    try:
        plan.check_micro_batch(micro)
        allowed = True
    except ConfigError:
        allowed = False

    assert allowed == torch_accepts


def test_the_suggested_fix_for_one_value_trains():
    options = {"model": "resnet8", "data": "shapes", "image_size": 9, "norm_type": "group"}
    plan = plan_network(build_config(options | {"stem": "large", "norm_num_groups": 16}))
    plan.check_micro_batch(1)
    images, labels = images_and_labels(1, 9)
    (logits,) = build_slice(plan.layers)(images)

    assert torch.isfinite(F.cross_entropy(logits, labels))
