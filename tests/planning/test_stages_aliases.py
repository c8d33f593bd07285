"""Layer aliases of other applications: all their splits and recompute checkpoints."""

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.models.network import plan_network
from convoy.planning.memory import plan_recompute
from convoy.planning.plan import plan_run
from convoy.planning.stages import aliases, split_into_stages


def layers(model: str) -> list[str]:
    return [layer.name for layer in plan_network(build_config({"model": model})).layers]


RESNET50 = layers("resnet50")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("b0", "conv1"),
        ("stage0", "conv1"),
        ("b1/0", "layer1/0"),
        ("b3/5/relu", "layer3/5/relu"),
        ("stage3/unit6", "layer3/5"),
        ("stage1/unit1/relu", "layer1/0/relu"),
        ("reduce_mean", "avgpool"),
        ("fc1", "fc"),
        ("add", "layer1/0/add"),
        ("add_1", "layer1/1/add"),
        ("add/1", "layer1/1/add"),
        ("add_3", "layer2/0/add"),
        ("add_15", "layer4/2/add"),
        ("add/15", "layer4/2/add"),
        ("layer4/0/downsample_0", "layer4/0/downsample/0"),
        ("layer4/0/downsample_1", "layer4/0/downsample/1"),
    ],
)
def test_an_alias_names_a_layer_or_a_block(alias: str, name: str):
    assert aliases(RESNET50)[alias] == name


@pytest.mark.parametrize("alias", ["add_0", "add/0", "add_16", "b1/3", "b4/3/relu", "stage1/unit0"])
def test_aliases_only_name_layers_of_the_network(alias: str):
    assert alias not in aliases(RESNET50)


@pytest.mark.parametrize("model", ["resnet8", "resnet18", "resnet50", "resnet110"])
def test_every_block_has_aliases(model: str):
    names = layers(model)
    blocks = [name.removesuffix("/add") for name in names if name.endswith("/add")]
    known = aliases(names)
    numbered = [alias for alias in known if alias.startswith("b") and alias.count("/") == 1]
    units = [alias for alias in known if "/unit" in alias and not alias.endswith("/relu")]

    assert [known[alias] for alias in numbered] == [known[alias] for alias in units] == blocks
    assert [known[f"{alias}/relu"] for alias in numbered] == [f"{block}/relu" for block in blocks]
    assert [known[f"{alias}/relu"] for alias in units] == [f"{block}/relu" for block in blocks]


def test_no_alias_is_a_layer_name():
    assert not set(aliases(RESNET50)) & set(RESNET50)


SPLITS = [
    ("b1/0/relu b1/2/relu b2/3/relu", "layer1/0/relu layer1/2/relu layer2/3/relu"),
    (
        "b1/0/relu b1/2/relu b2/0/relu b2/2/relu b3/0/relu b3/3/relu",
        "layer1/0/relu layer1/2/relu layer2/0/relu layer2/2/relu layer3/0/relu layer3/3/relu",
    ),
    ("b1/2/relu b2/3/relu b3/3/relu", "layer1/2/relu layer2/3/relu layer3/3/relu"),
    ("b1/2/relu b2/3/relu b3/5/relu", "layer1/2/relu layer2/3/relu layer3/5/relu"),
    ("b3/0/relu", "layer3/0/relu"),
    ("b3/1/relu", "layer3/1/relu"),
    (
        "stage1/unit1/relu stage1/unit3/relu stage2/unit4/relu",
        "layer1/0/relu layer1/2/relu layer2/3/relu",
    ),
    (
        "stage1/unit1/relu stage1/unit3/relu stage2/unit1/relu stage2/unit3/relu "
        "stage3/unit1/relu stage3/unit4/relu",
        "layer1/0/relu layer1/2/relu layer2/0/relu layer2/2/relu layer3/0/relu layer3/3/relu",
    ),
    (
        "stage1/unit3/relu stage2/unit4/relu stage3/unit4/relu",
        "layer1/2/relu layer2/3/relu layer3/3/relu",
    ),
    ("layer1/2 layer2/3 layer3/4", "layer1/2/conv1 layer2/3/conv1 layer3/4/conv1"),
]


@pytest.mark.parametrize(("splits", "firsts"), SPLITS)
def test_every_split_of_a_shipped_resnet_is_found(splits: str, firsts: str):
    assert [
        stage.names[0] for stage in split_into_stages(RESNET50, splits.split())[1:]
    ] == firsts.split()


ADDITIONS = "add add_1 add_2 add_3 add_5 add_6 add_7 add_9 add_11 add_12"
ADDITION_LAYERS = [
    *("layer1/0/add", "layer1/1/add", "layer1/2/add"),
    *("layer2/0/add", "layer2/2/add", "layer2/3/add"),
    *("layer3/0/add", "layer3/2/add", "layer3/4/add", "layer3/5/add"),
]
LAST_GROUP = """
    layer4/0/conv1 layer4/0/bn1 layer4/0/conv2 layer4/0/bn2 layer4/0/conv3 layer4/0/bn3
    layer4/0/downsample_0 layer4/0/downsample/1 add_13
    layer4/1/conv1 layer4/1/bn1 layer4/1/conv2 layer4/1/bn2 layer4/1/conv3 layer4/1/bn3 add_14
    layer4/2/conv1 layer4/2/bn1 layer4/2/conv2 layer4/2/bn2 layer4/2/conv3 layer4/2/bn3 add_15
    avgpool fc
"""
PIPELINED = """
    layer3/5/conv1 layer3/5/conv2 layer3/5/conv3 layer3/4/conv1 layer3/4/conv2 layer3/4/conv3
    layer4/0/conv1 layer4/0/conv2 layer4/0/conv3 layer3/5/bn1 layer3/5/bn2 layer3/5/bn3
    layer3/2/conv1 layer3/2/conv2 layer3/2/conv3 layer3/3/conv1 layer3/3/conv2 layer3/3/conv3
    layer3/1/conv1 layer3/1/conv2 layer3/1/conv3 layer4/1/conv2 layer4/1/conv3
    layer4/2/conv1 layer4/2/conv2 layer4/2/conv3 layer4/1/bn1 layer4/1/bn2 layer4/1/bn3
    layer3/0/bn1 layer3/0/bn3 layer3/1/bn2 layer3/1/bn3 layer3/0/bn2 layer3/2/bn1 layer3/3/bn1
    layer3/2/bn2 layer3/2/bn3 layer1/0/bn3 layer1/1/bn1 layer1/1/bn2 layer1/2/bn3 layer2/1/bn1
    layer2/2/bn1 layer3/1/bn1 layer4/0/bn1 layer4/0/bn3 layer4/2/bn1 layer4/2/bn2 layer4/2/bn3
"""


@pytest.mark.parametrize("additions", [ADDITIONS, ADDITIONS.replace("_", "/")])
def test_additions_are_found_by_their_number(additions: str):
    assert list(plan_recompute(additions.split(), RESNET50).checkpoints) == ADDITION_LAYERS


@pytest.mark.parametrize("points", [ADDITIONS + LAST_GROUP, PIPELINED])
def test_every_recompute_checkpoint_of_a_shipped_resnet_is_a_different_layer(points: str):
    checkpoints = plan_recompute(points.split(), RESNET50).checkpoints

    assert len(checkpoints) == len(points.split())


def test_a_run_planned_with_aliases_shows_layer_names():
    plan = plan_run(
        build_config(
            {
                "model": "resnet50",
                "data": "imagenet",
                "pipeline_splits": ("b1/2/relu", "stage2/unit4", "add_12"),
                "recompute_checkpoints": ("add_1", "reduce_mean"),
                "gradient_accumulation": 4,
            }
        )
    )

    assert plan.stage_starts == ("layer1/2/relu", "layer2/3/conv1", "layer3/5/add")
    assert plan.recompute.checkpoints == ("layer1/1/add", "avgpool")


def test_an_alias_of_the_first_layer_is_refused_as_a_split():
    with pytest.raises(ConfigError, match=r"'b0' is the first layer: .* omit it"):
        split_into_stages(RESNET50, ["b0"])


@pytest.mark.parametrize(
    "names",
    [
        ["conv1", "flatten", "fc"],
        ["blocks/0/0", "blocks/0/1", "blocks/1/0", "flatten", "fc"],
        ["blocks/0/0/conv_dw", "blocks/1/0/conv_dw", "flatten"],
        ["blocks/0/0/conv_dw", "flatten", "fc"],
    ],
)
def test_a_network_of_the_user_may_have_some_of_the_names(names: list[str]):
    stages = split_into_stages(names, [names[1]])

    assert [stage.first for stage in stages] == [0, 1]
