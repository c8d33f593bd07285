"""Layer names of other applications for EfficientNet, MobileNet v3 and the ResNet of PopART."""

from collections.abc import Iterator

import pytest
from support.model_families import Small

from convoy.errors import ConfigError
from convoy.planning.stages import aliases, split_into_stages

B0 = """
    block1a/b block1a/c block2a block2a/b block2a/c block2b block3a block3a/b block3a/c block3b
    block4a block4a/b block4a/c block4b block4c block5a block5a/b block5a/c block5b block5c
    block6a block6a/b block6a/c block6b block6c block6d block7a block7a/b block7a/c Top
"""
B4_ONLY = """
    block1b block2c block2d block3c block3d block4d block4e block4f block5d block5e block5f
    block6e block6f block6g block6h block7b
"""


def names(model: str, **options: str | bool) -> list[str]:
    return [layer.name for layer in Small({"model": model, **options}, 224).plan.layers]


def first_layer_of(alias: str, layers: list[str]) -> str:
    """The first layer of the stage that starts at this alias."""
    return split_into_stages(layers, [alias])[1].names[0]


def expand_alias(alias: str) -> str:
    """The expected layer: groups count from 1, blocks are letters, parts are convolutions."""
    if alias == "Top":
        return "conv_head"
    block, _, part = alias.partition("/")
    number, letter = block[-2], block[-1]
    first = "conv_dw" if number == "1" else "conv_pw"
    last = "conv_pw" if number == "1" else "conv_pwl"
    layer = {"": first, "b": "conv_dw", "c": last, "SE": "se/pool"}[part]
    return f"blocks/{int(number) - 1}/{'abcdefgh'.index(letter)}/{layer}"


@pytest.mark.parametrize(
    ("size", "known"), [("b0", B0.split()), ("b4", B0.split() + B4_ONLY.split())]
)
def test_every_alias_of_an_efficientnet_is_found(size: str, known: list[str]):
    layers = names(f"efficientnet-{size}")
    matches = {alias: first_layer_of(alias, layers) for alias in known}

    assert matches == {alias: expand_alias(alias) for alias in known}
    assert aliases(layers)["block0"] == "conv_stem"


def test_aliases_are_in_layer_order():
    layers = names("efficientnet-b0")
    indices = [layers.index(first_layer_of(alias, layers)) for alias in B0.split()]

    # The first block does not expand, so it starts with its depthwise convolution.
    assert indices == sorted(indices) and len(set(indices)) == len(indices)


@pytest.mark.parametrize("alias", ["block2a/SE", "block1a/SE", "block6d/SE"])
def test_a_stage_may_start_at_a_gate(alias: str):
    plain, proxy = names("efficientnet-b0"), names("efficientnet-b0", proxy_norm=True)
    expected = expand_alias(alias)

    assert first_layer_of(alias, plain) == expected
    assert first_layer_of(alias, proxy) == expected.removesuffix("/pool")


def test_without_squeeze_excite_there_is_no_such_alias():
    assert not any(
        alias.endswith("/SE") for alias in aliases(names("efficientnet-b0", squeeze_excite=False))
    )


@pytest.mark.parametrize(
    ("model", "splits", "firsts"),
    [
        ("b0", "block2b block4a block6a", "1/1/conv_pw 3/0/conv_pw 5/0/conv_pw"),
        ("b0", "block2a/SE block4a block5c", "1/0/se/pool 3/0/conv_pw 4/2/conv_pw"),
        ("b0", "block3b", "2/1/conv_pw"),
        ("b4", "block2b block4b block6c", "1/1/conv_pw 3/1/conv_pw 5/2/conv_pw"),
        ("b4", "block2c block4c block6a", "1/2/conv_pw 3/2/conv_pw 5/0/conv_pw"),
        ("b4", "block4a", "3/0/conv_pw"),
        ("b0", "blocks/3/0/conv_pw", "3/0/conv_pw"),
        ("b4", "blocks/3/0/bn2", "3/0/bn2"),
        ("b4", "blocks/3/0", "3/0/conv_pw"),
    ],
)
def test_every_split_of_a_shipped_efficientnet_is_found(model: str, splits: str, firsts: str):
    stages = split_into_stages(names(f"efficientnet-{model}"), splits.split())

    assert [stage.names[0] for stage in stages[1:]] == [f"blocks/{item}" for item in firsts.split()]


# The modules of the published code in order.
PYTORCH_B0 = """
    conv_stem bn1 act1 blocks/0/0/conv_dw blocks/0/0/bn1 blocks/0/0/act1 blocks/0/0/se/conv_reduce
    blocks/0/0/se/act1 blocks/0/0/se/conv_expand blocks/0/0/se/gate blocks/0/0/conv_pw
    blocks/0/0/bn2 blocks/1/0/conv_pw blocks/1/0/bn1 blocks/1/0/act1 blocks/1/0/conv_dw
    blocks/1/0/bn2 blocks/1/0/act2 blocks/1/0/se/conv_reduce blocks/1/0/se/act1
    blocks/1/0/se/conv_expand blocks/1/0/se/gate blocks/1/0/conv_pwl blocks/1/0/bn3
    conv_head bn2 act2 global_pool classifier
"""


def test_the_names_of_timm_are_layers_in_their_order():
    layers = names("efficientnet-b0")
    indices = [layers.index(alias) for alias in PYTORCH_B0.split()]

    assert indices == sorted(indices)


def mobilenet_aliases() -> Iterator[tuple[str, str]]:
    yield from (("first_block/1", "bn1"), ("first_block/2", "act1"))
    inner = ("conv_dw", "bn1", "act1", "se/pool", "conv_pw", "bn2")
    yield from (
        (f"mb_block/0/seq/{index}", f"blocks/0/0/{item}") for index, item in enumerate(inner)
    )
    inner = ("conv_pw", "bn1", "act1", "conv_dw", "bn2", "act2", "conv_pwl", "bn3")
    yield from (
        (f"mb_block/1/seq/{index}", f"blocks/1/0/{item}") for index, item in enumerate(inner)
    )
    yield from (("mb_block/2/seq/0", "blocks/1/1/conv_pw"), ("mb_block/2", "blocks/1/1/conv_pw"))
    yield from (
        ("mb_block/3/seq/6", "blocks/2/0/se/pool"),
        ("mb_block/3/seq/7", "blocks/2/0/conv_pwl"),
    )
    yield ("mb_block/10/seq/0", "blocks/4/2/conv_pw")
    last = (
        "blocks/5/0/conv",
        "blocks/5/0/bn1",
        "blocks/5/0/act1",
        "global_pool",
        "conv_head",
        "act2",
    )
    yield from ((f"last_block/{index}", item) for index, item in enumerate(last))
    yield ("output", "classifier")


@pytest.mark.parametrize(("alias", "layer"), list(mobilenet_aliases()))
def test_an_alias_of_mobilenet_v3_names_a_layer(alias: str, layer: str):
    assert first_layer_of(alias, names("mobilenet-v3-small")) == layer


def test_the_eleven_and_fifteen_blocks_of_mobilenet_have_numbers():
    for model, blocks in (("mobilenet-v3-small", 11), ("mobilenet-v3-large", 15)):
        known = aliases(names(model))

        assert [f"mb_block/{item}" in known for item in range(blocks + 1)] == [True] * blocks + [
            False
        ]


@pytest.mark.parametrize(
    ("alias", "layer"),
    [
        ("b1/0/2", "layer1/0/conv2"),
        ("b2/1/1", "layer2/1/conv1"),
        ("b3/5/3", "layer3/5/conv3"),
        ("b4/0/shortcut", "layer4/0/downsample/0"),
        ("classifier", "fc"),
    ],
)
def test_a_scope_of_popart_names_a_layer(alias: str, layer: str):
    assert first_layer_of(alias, names("resnet50")) == layer


def test_the_initial_block_is_the_first_convolution_even_after_padding():
    assert aliases(names("resnet50"))["initial_block"] == "conv1"
    assert aliases(names("resnet50", input_image_padding=True))["initial_block"] == "conv1"


@pytest.mark.parametrize(
    ("model", "split", "near"),
    [
        ("efficientnet-b0", "blocks/2/9/conv_pw", "blocks/2/1/conv_pw"),
        ("mobilenet", "features/3/conv/9", "features/3/conv/3"),
        ("mobilenet-v3-small", "blocks/3/1/se/conv_reduces", "blocks/3/1/se/conv_reduce"),
        ("squeezenet", "fire9/expand3x", "fire9/expand3x3"),
        ("resnext50", "layer2/7/conv1", "layer2/1/conv1"),
    ],
)
def test_an_unknown_layer_is_refused_as_a_split_with_near_names(model: str, split: str, near: str):
    with pytest.raises(ConfigError) as refused:
        split_into_stages(names(model), [split])
    message = str(refused.value)

    assert message.startswith(f"--pipeline-splits '{split}' is not a layer")
    assert near in message and "\n" not in message
