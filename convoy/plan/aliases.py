"""Further words for layers: as the reference applications spell their split and recompute points.

b1/2  b1/2/relu  stage1/unit3  stage1/unit3/relu    a block and its last layer, counted two ways
b0  stage0  reduce_mean  fc1                        the first layer, the pooling, the classifier
add  add_1  add/1  layer4/0/downsample_0            nodes of a traced graph
"""

import re
from collections.abc import Iterator, Sequence

_BLOCK_END = re.compile(r"layer(\d+)/(\d+)/relu")
_ENDS = {"avgpool": ("reduce_mean",), "fc": ("fc1",)}


def aliases(names: Sequence[str]) -> dict[str, str]:
    """Each further word → the layer or group that it means. A layer's own name wins over these."""
    words = {"b0": names[0], "stage0": names[0]}
    for name in names:
        words.update(dict.fromkeys(_ENDS.get(name, ()), name))
        words.update(_of_block(name))
        if "/downsample/" in name:
            words["downsample_".join(name.rsplit("downsample/", 1))] = name
    return words | dict(_additions(names))


def _of_block(name: str) -> Iterator[tuple[str, str]]:
    """The words of a block, found by its last layer. A unit counts from 1."""
    if (found := _BLOCK_END.fullmatch(name)) is None:
        return
    group, block = found.groups()
    for word in (f"b{group}/{block}", f"stage{group}/unit{int(block) + 1}"):
        yield word, name.removesuffix("/relu")
        yield f"{word}/relu", name


def _additions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A traced graph numbers its additions; the first one has no number."""
    for number, name in enumerate(name for name in names if name.endswith("/add")):
        for word in (f"add_{number}", f"add/{number}") if number else ("add",):
            yield word, name
