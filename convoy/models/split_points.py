"""Further words for layers: as the reference applications spell their split and recompute points.

ResNet        b1/2  b1/2/relu  stage1/unit3  stage1/unit3/relu   a block and its last layer
b1/2/1  b1/2/shortcut  initial_block  classifier   its parts, the ends of the network
EfficientNet  block0  block2a  block2a/b  block2a/SE  block2a/c  Top MobileNet v3  first_block/0
mb_block/2/seq/0  last_block/0  output all           add  add_1  add/1  layer4/0/downsample_0
nodes of a traced graph
"""

import re
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

_PADDING = "pad"  # comes before the first layer that anybody has a word for
_RESIDUAL = re.compile(r"layer(\d+)/(\d+)/(.+)")
_PARTS = {"conv1": "1", "conv2": "2", "conv3": "3", "downsample/0": "shortcut"}
_ENDS = {
    "avgpool": ("reduce_mean",),
    "fc": ("fc1", "classifier"),
    "conv_head": ("Top",),
    "classifier": ("output",),
}
_BLOCK = re.compile(r"blocks/(\d+)/(\d+)")
_FILTER, _GATES, _NARROW = "conv_dw", ("se/pool", "se"), ("conv_pwl", "conv_pw")


def aliases(names: Sequence[str]) -> dict[str, str]:
    """Each further word → the layer or group that it means. A layer's own name wins over these."""
    first = next(name for name in names if name != _PADDING)
    words = dict.fromkeys(("b0", "stage0", "block0", "initial_block"), first)
    for name in names:
        words.update(dict.fromkeys(_ENDS.get(name, ()), name))
        words.update(_of_residual(name))
        if "/downsample/" in name:
            words["downsample_".join(name.rsplit("downsample/", 1))] = name
    blocks = _blocks(names)
    words.update(_of_blocks(blocks))
    if "flatten" in names:
        words.update(_of_sequences(names, blocks))
    return words | dict(_additions(names))


def _of_residual(name: str) -> Iterator[tuple[str, str]]:
    """The words of a block, found by its last layer, and of its parts. A unit counts from 1."""
    if (found := _RESIDUAL.fullmatch(name)) is None:
        return
    group, block, part = found.groups()
    if part in _PARTS:
        yield f"b{group}/{block}/{_PARTS[part]}", name
    if part != "relu":
        return
    for word in (f"b{group}/{block}", f"stage{group}/unit{int(block) + 1}"):
        yield word, name.removesuffix("/relu")
        yield f"{word}/relu", name


def _blocks(names: Sequence[str]) -> dict[str, list[str]]:
    """The places inside each block, in order: `blocks/1/0` → `conv_pw`, `bn1`, …"""
    blocks: dict[str, list[str]] = {}
    for name in names:
        if (found := _BLOCK.match(name)) is not None:
            blocks.setdefault(found[0], []).append(name.removeprefix(f"{found[0]}/"))
    return blocks


def _of_blocks(blocks: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Groups count from 1, their blocks are letters; b, SE and c begin inside a block."""
    for block, places in blocks.items():
        _, group, repeat = block.split("/")
        if _FILTER not in places or int(repeat) >= len(ascii_lowercase):
            continue
        word = f"block{int(group) + 1}{ascii_lowercase[int(repeat)]}"
        yield word, block
        yield f"{word}/b", f"{block}/{_FILTER}"
        yield f"{word}/c", f"{block}/{next(one for one in _NARROW if one in places)}"
        for gate in _GATES:
            if gate in places:
                yield f"{word}/SE", f"{block}/{gate}"


def _of_sequences(names: Sequence[str], blocks: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Lists of modules, counted from 0: the stem, each block, and all behind the blocks."""
    *inverted, last = blocks
    for number, block in enumerate(inverted):
        modules = [one for one in blocks[block] if one == "se/pool" or "/" not in one]
        for place, module in enumerate(modules):
            yield f"mb_block/{number}/seq/{place}", f"{block}/{module}"
        yield f"mb_block/{number}", block
    end, start = (names.index(f"{one}/{blocks[one][0]}") for one in (inverted[0], last))
    stem = [name for name in names[:end] if name != _PADDING]
    for word, row in (("first_block", stem), ("last_block", names[start:])):
        for place, name in enumerate(row):
            yield f"{word}/{place}", name


def _additions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A traced graph numbers its additions; the first one has no number."""
    for number, name in enumerate(name for name in names if name.endswith("/add")):
        for word in (f"add_{number}", f"add/{number}") if number else ("add",):
            yield word, name
