"""Cut the list of layers into stages: at named splits, or balanced by cost; where a stage may
begin.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from string import ascii_lowercase

from convoy.config.schema import RunConfig
from convoy.config.settings import Problem, refuse
from convoy.errors import ConfigError
from convoy.models.layers import FlattenSpec, GlobalPoolSpec, LayerPlan, Shape
from convoy.models.network import NetworkPlan
from convoy.plan.activations import WHOLE, kept_elements
from convoy.registry import suggest
from convoy.text import counted, short

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


OPTION = "--pipeline-splits"
SHOWN = f"`{OPTION} list` shows where a stage may begin"


@dataclass(frozen=True)
class StagePlan:
    """One stage: the layers first … last of the whole list, both included."""

    stage: int
    first: int
    last: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class StageBoundary:
    """The shapes of what one micro-batch brings into a stage and takes out of it, and which way
    gradients go. They cross a boundary unless nothing before it is trained.
    """

    incoming: tuple[tuple[int, ...], ...]
    outgoing: tuple[tuple[int, ...], ...]
    sends_gradients: bool  # to the stage before; the first has none
    receives_gradients: bool  # from the stage after, or from the loss


def stage_boundary(
    network: NetworkPlan, stage: StagePlan, samples: int, frozen: int = 0
) -> StageBoundary:
    """The boundary of a stage for micro-batches of so many samples; the first layers may be
    frozen."""
    before, after = network.layers[: stage.first], network.layers[: stage.last + 1]
    return StageBoundary(
        _shapes(network.costs[stage.first].bundle_in, before, samples),
        _shapes(network.costs[stage.last].bundle_out, after, samples),
        sends_gradients=stage.first > frozen,
        receives_gradients=stage.last >= frozen,
    )


def _shapes(
    bundle: tuple[Shape, ...], layers: Sequence[LayerPlan], samples: int
) -> tuple[tuple[int, ...], ...]:
    """A shape of one pixel is a vector only after the pooling over the whole image."""
    if any(isinstance(layer.operation, GlobalPoolSpec | FlattenSpec) for layer in layers):
        return tuple((samples, shape.channels) for shape in bundle)
    return tuple((samples, shape.channels, shape.size, shape.size) for shape in bundle)


def cut(names: Sequence[str], splits: Sequence[str]) -> tuple[StagePlan, ...]:
    """Stages of a list of layers. A split names the first layer of the next stage.

    A split may name a group: `layer2/0` is the first layer that starts with `layer2/0/`.
    """
    assert names, "a model has layers"
    if not splits:
        return divide(names, [0])
    firsts = first_layers(names)
    further = {word: firsts[meant] for word, meant in aliases(names).items()} | firsts
    refuse(_problems(firsts, further, splits))
    return divide(names, [0, *(further[split] for split in splits)])


def divide(names: Sequence[str], starts: Sequence[int]) -> tuple[StagePlan, ...]:
    """Stages that begin at these layers; what `balance` returns fits in here."""
    borders = pairwise([*starts, len(names)])
    return tuple(
        StagePlan(stage, first, end - 1, tuple(names[first:end]))
        for stage, (first, end) in enumerate(borders)
    )


def first_layers(names: Sequence[str]) -> dict[str, int]:
    """Every word a split may be → the layer it means. A layer's own name wins over a group's."""
    firsts = {name: index for index, name in enumerate(names)}
    for index, name in enumerate(names):
        for group in groups_of(name):
            firsts.setdefault(group, index)
    return firsts


def place_of(names: Sequence[str], word: str) -> int | None:
    """The layer that a word means, be it a layer, a group or a further word; None: no layer."""
    firsts = first_layers(names)
    meant = word if word in firsts else aliases(names).get(word)
    return None if meant is None else firsts[meant]


def groups_of(name: str) -> list[str]:
    """The groups that a layer belongs to, the widest first: `layer1`, `layer1/0`."""
    words = name.split("/")
    return ["/".join(words[:length]) for length in range(1, len(words))]


def _problems(
    own: dict[str, int], firsts: dict[str, int], splits: Sequence[str]
) -> Iterator[Problem]:
    """Everything that is wrong with the list; only the model's own words are offered."""
    for split in dict.fromkeys(splits):
        if split not in firsts:
            near = suggest(split, own)
            yield Problem(OPTION, f"{split!r} is no layer of this model; {near} ({SHOWN})")
        elif firsts[split] == 0:
            text = f"{split!r} is the first layer: the stage before it would be empty; leave it out"
            yield Problem(OPTION, f"{text} ({SHOWN})")
    known = [split for split in splits if split in firsts]
    yield from _repeated(firsts, known)
    if any(firsts[after] < firsts[before] for before, after in pairwise(known)):
        usable = {firsts[split]: split for split in reversed(known) if firsts[split] > 0}
        ordered = [usable[layer] for layer in sorted(usable)]
        text = f"{' '.join(known)} is out of order; use {' '.join(ordered)}"
        yield Problem(OPTION, f"{text} ({SHOWN})")


def _repeated(firsts: dict[str, int], known: Sequence[str]) -> Iterator[Problem]:
    """Two splits at one layer, spelled alike or not."""
    met: dict[int, str] = {}
    for split in known:
        layer = firsts[split]
        if layer in met:
            same = "is given twice" if met[layer] == split else f"is the layer of {met[layer]!r}"
            yield Problem(OPTION, f"{split!r} {same}; name it once ({SHOWN})")
        met.setdefault(layer, split)


def balance(costs: Sequence[int], stages: int) -> tuple[int, ...]:
    """Where each stage begins, so that the dearest stage is as cheap as can be.

    Among such cuts the one whose stages are most alike (least sum of squares); among those, the
    earliest cuts, since early stages keep the most activations. No stage is empty.
    """
    assert stages >= 1
    if stages > len(costs):
        raise ConfigError(
            f"{stages} stages need at least {stages} layers but the model has {len(costs)}; "
            f"lower --shards to {len(costs)} or less"
        )
    limits = range(max(costs), sum(costs))
    limit = limits.start + bisect_left(
        limits, True, key=lambda limit: _stages_needed(costs, limit) <= stages
    )
    return _most_alike(list(accumulate(costs, initial=0)), stages, limit)


def _stages_needed(costs: Sequence[int], limit: int) -> int:
    """The fewest stages of which none is dearer than the limit: each takes all that fit."""
    stages, cost_of_last = 1, 0
    for cost in costs:
        cost_of_last += cost
        if cost_of_last > limit:
            stages, cost_of_last = stages + 1, cost
    return stages


def _most_alike(sums: list[int], stages: int, limit: int) -> tuple[int, ...]:
    """The start of each stage: none dearer than the limit, least sum of squares, earliest cuts.

    `sums[i]` is the cost of the first i layers.
    """
    layers = len(sums) - 1
    # after[i]: the least sum of squares of the layers from i on, and where the next stage begins.
    after: list[tuple[int, int] | None] = [None] * layers + [(0, layers)]
    nexts: list[list[tuple[int, int] | None]] = []
    for _ in range(stages):
        after = [_best_end(sums, start, limit, after) for start in range(layers)] + [None]
        nexts.append(after)
    starts = [0]
    for choices in nexts[:0:-1]:
        choice = choices[starts[-1]]
        assert choice is not None, "the limit was computed to be reachable"
        starts.append(choice[1])
    return tuple(starts)


def _best_end(
    sums: list[int], start: int, limit: int, after: list[tuple[int, int] | None]
) -> tuple[int, int] | None:
    """The least sum of squares from this start, with the end of its stage; None if impossible."""
    best: tuple[int, int] | None = None
    for end in range(start + 1, len(sums)):
        cost = sums[end] - sums[start]
        if cost > limit:
            break
        rest = after[end]
        if rest is not None and (best is None or rest[0] + cost**2 < best[0]):
            best = (rest[0] + cost**2, end)
    return best


LIST = "list"


@dataclass(frozen=True)
class SplitPoint:
    """A layer that may begin a stage, and what lies on either side of a cut before it."""

    name: str
    tensors: int  # that travel to it
    bytes: int  # of one micro-batch, in each direction
    work_before: float  # share of the multiply-adds
    parameters_before: int
    parameters_after: int
    activations_before: int  # bytes that the backward pass needs, for one micro-batch
    activations_after: int
    also: tuple[str, ...]  # what other applications call this place


def asks_for_list(config: RunConfig) -> bool:
    """Whether the wish is to see the points instead of a run."""
    return LIST in config.pipeline.pipeline_splits


def split_points(network: NetworkPlan, micro_batch_size: int) -> tuple[SplitPoint, ...]:
    """Every layer but the first."""
    also, sample = _further_words(network), WHOLE * micro_batch_size
    work = list(accumulate(cost.macs for cost in network.costs))
    parameters = list(accumulate(cost.parameters for cost in network.costs))
    elements = kept_elements(network.layers, network.costs[0].bundle_in[0])
    kept = list(accumulate(sample * one for one in elements))
    return tuple(
        SplitPoint(
            cost.name,
            len(cost.bundle_in),
            sample * sum(shape.elements for shape in cost.bundle_in),
            work[before] / max(1, work[-1]),
            parameters[before],
            parameters[-1] - parameters[before],
            kept[before],
            kept[-1] - kept[before],
            also[cost.name],
        )
        for before, cost in enumerate(network.costs[1:])
    )


def _further_words(network: NetworkPlan) -> dict[str, tuple[str, ...]]:
    """The words of other applications for each layer, by its own name."""
    names = [layer.name for layer in network.layers]
    firsts, words = first_layers(names), defaultdict[str, tuple[str, ...]](tuple)
    for word, meant in aliases(names).items():
        if word not in firsts:  # a layer's own name wins
            words[names[firsts[meant]]] += (word,)
    return words


def splits_as_text(points: Sequence[SplitPoint]) -> list[str]:
    """What `--pipeline-splits list` prints: before the cut | behind it."""
    title = "a stage may begin at"
    width = max(len(title), *(len(one.name) for one in points))
    lines = [f"{title:<{width}}  {'work %':^13}  {'parameters':^17}  {'activations':^17}  travels"]
    for one in points:
        work = 100 * one.work_before
        activations = [f"{short(one.activations_before)}B", f"{short(one.activations_after)}B"]
        also = f"  also {', '.join(one.also)}" if one.also else ""
        lines.append(
            f"{one.name:<{width}}  {work:>5.1f} | {100 - work:>5.1f}  "
            f"{short(one.parameters_before):>7} | {short(one.parameters_after):>7}  "
            f"{activations[0]:>7} | {activations[1]:>7}  "
            f"{short(one.bytes)}B in {counted(one.tensors, 'tensor')}{also}"
        )
    return lines
