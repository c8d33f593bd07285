"""Split a list of layers into stages, at named layers or balanced by cost, and list the possible
split points.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from string import ascii_lowercase

from convoy.config.schema import Problem, RunConfig, raise_problems
from convoy.errors import ConfigError
from convoy.models.layers import FlattenSpec, GlobalPoolSpec, LayerPlan, ModuleSpec, Shape
from convoy.models.network import NetworkPlan
from convoy.planning.activations import FP32_BYTES, saved_elements
from convoy.registry import suggest
from convoy.text import format_si, pluralize

_PAD_LAYER = "pad"  # precedes the first layer that has aliases
_RESNET_BLOCK = re.compile(r"layer(\d+)/(\d+)/(.+)")
_RESNET_ALIASES = {"conv1": "1", "conv2": "2", "conv3": "3", "downsample/0": "shortcut"}
_LAYER_ALIASES = {
    "avgpool": ("reduce_mean",),
    "fc": ("fc1", "classifier"),
    "conv_head": ("Top",),
    "classifier": ("output",),
}
_INVERTED_BLOCK = re.compile(r"(blocks/\d+/\d+)/(.+)")
_DEPTHWISE = "conv_dw"
_GATES = ("se/pool", "se")
_PROJECTIONS = ("conv_pwl", "conv_pw")


def aliases(names: Sequence[str]) -> dict[str, str]:
    """Names in other applications → layer or group. Actual layer names take precedence."""
    first = next(name for name in names if name != _PAD_LAYER)
    words = dict.fromkeys(("b0", "stage0", "block0", "initial_block"), first)
    for name in names:
        words.update(dict.fromkeys(_LAYER_ALIASES.get(name, ()), name))
        words.update(_resnet_aliases(name))
        if "/downsample/" in name:
            words["downsample_".join(name.rsplit("downsample/", 1))] = name
    blocks = _inverted_blocks(names)
    words.update(_efficientnet_aliases(blocks))
    if "flatten" in names and len(blocks) > 1:  # a user's network may have other blocks, or none
        words.update(_mobilenet_aliases(names, blocks))
    return words | dict(_add_aliases(names))


def _resnet_aliases(name: str) -> Iterator[tuple[str, str]]:
    """Aliases of a block (yielded with its last layer) and of its parts. Units count from 1."""
    if (match := _RESNET_BLOCK.fullmatch(name)) is None:
        return
    group, block, part = match.groups()
    if part in _RESNET_ALIASES:
        yield f"b{group}/{block}/{_RESNET_ALIASES[part]}", name
    if part != "relu":
        return
    for word in (f"b{group}/{block}", f"stage{group}/unit{int(block) + 1}"):
        yield word, name.removesuffix("/relu")
        yield f"{word}/relu", name


def _inverted_blocks(names: Sequence[str]) -> dict[str, list[str]]:
    """The layers of each block, in order: `blocks/1/0` → `conv_pw`, `bn1`, …"""
    blocks: dict[str, list[str]] = {}
    for name in names:
        if (match := _INVERTED_BLOCK.fullmatch(name)) is not None:
            blocks.setdefault(match[1], []).append(match[2])
    return blocks


def _efficientnet_aliases(blocks: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Groups count from 1, blocks are letters; `b`, `SE` and `c` start inside a block."""
    for block, parts in blocks.items():
        _, group, repeat = block.split("/")
        if _DEPTHWISE not in parts or int(repeat) >= len(ascii_lowercase):
            continue
        word = f"block{int(group) + 1}{ascii_lowercase[int(repeat)]}"
        yield word, block
        yield f"{word}/b", f"{block}/{_DEPTHWISE}"
        for projection in [part for part in _PROJECTIONS if part in parts][:1]:
            yield f"{word}/c", f"{block}/{projection}"
        for gate in _GATES:
            if gate in parts:
                yield f"{word}/SE", f"{block}/{gate}"


def _mobilenet_aliases(
    names: Sequence[str], blocks: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """Modules counted from 0: of the stem, of each block, and after the blocks."""
    *inverted, last = blocks
    for number, block in enumerate(inverted):
        modules = [part for part in blocks[block] if part == "se/pool" or "/" not in part]
        for index, module in enumerate(modules):
            yield f"mb_block/{number}/seq/{index}", f"{block}/{module}"
        yield f"mb_block/{number}", block
    end, start = (names.index(f"{block}/{blocks[block][0]}") for block in (inverted[0], last))
    stem = [name for name in names[:end] if name != _PAD_LAYER]
    for word, row in (("first_block", stem), ("last_block", names[start:])):
        for index, name in enumerate(row):
            yield f"{word}/{index}", name


def _add_aliases(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A traced graph numbers its additions; the first one has no number."""
    for number, name in enumerate(name for name in names if name.endswith("/add")):
        for word in (f"add_{number}", f"add/{number}") if number else ("add",):
            yield word, name


SPLITS_OPTION = "--pipeline-splits"
LIST_HINT = f"`{SPLITS_OPTION} list` shows where a stage can start"


@dataclass(frozen=True)
class StagePlan:
    """One stage: layers `first` to `last` (inclusive) of the network."""

    stage: int
    first: int
    last: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class StageBoundary:
    """Shapes of a micro-batch that enter and leave a stage, and where gradients are sent.

    Gradients cross a boundary unless nothing before it is trained.
    """

    incoming: tuple[tuple[int, ...], ...]
    outgoing: tuple[tuple[int, ...], ...]
    sends_gradients: bool  # to the previous stage, if there is one
    receives_gradients: bool  # from the next stage or the loss


def stage_boundary(
    network: NetworkPlan, stage: StagePlan, samples: int, frozen: int = 0
) -> StageBoundary:
    """The boundary of a stage for micro-batches of `samples`; the first layers can be frozen."""
    layers_before, layers_to_end = network.layers[: stage.first], network.layers[: stage.last + 1]
    return StageBoundary(
        _shapes(network.costs[stage.first].input_shapes, layers_before, samples),
        _shapes(network.costs[stage.last].output_shapes, layers_to_end, samples),
        sends_gradients=stage.first > frozen,
        receives_gradients=stage.last >= frozen,
    )


def _shapes(
    bundle: tuple[Shape, ...], layers: Sequence[LayerPlan], samples: int
) -> tuple[tuple[int, ...], ...]:
    """Tensors are vectors after global pooling or flattening, and images before."""
    last = layers[-1].operation if layers else None
    if isinstance(last, ModuleSpec):
        return ((samples, *last.output_dims),)
    if any(isinstance(layer.operation, GlobalPoolSpec | FlattenSpec) for layer in layers):
        return tuple((samples, shape.channels) for shape in bundle)
    return tuple((samples, shape.channels, shape.size, shape.size) for shape in bundle)


def split_into_stages(names: Sequence[str], splits: Sequence[str]) -> tuple[StagePlan, ...]:
    """Split the layers into stages. A split names the first layer of a stage.

    It can also name a group: `layer2/0` is the first layer that starts with `layer2/0/`.
    """
    assert names, "a network has at least one layer"
    if not splits:
        return stages_from_starts(names, [0])
    first_indices = split_targets(names)
    targets = with_aliases(names, first_indices)
    raise_problems(_split_problems(first_indices, targets, splits))
    return stages_from_starts(names, [0, *(targets[split] for split in splits)])


def stages_from_starts(names: Sequence[str], starts: Sequence[int]) -> tuple[StagePlan, ...]:
    """Stages that start at these layers, such as those from `balance`."""
    bounds = pairwise([*starts, len(names)])
    return tuple(
        StagePlan(stage, first, end - 1, tuple(names[first:end]))
        for stage, (first, end) in enumerate(bounds)
    )


def split_targets(names: Sequence[str]) -> dict[str, int]:
    """Layer and group names → index of the (first) layer. Layer names take precedence."""
    first_indices = {name: index for index, name in enumerate(names)}
    for index, name in enumerate(names):
        for group in parent_modules(name):
            first_indices.setdefault(group, index)
    return first_indices


def with_aliases(names: Sequence[str], indices: dict[str, int]) -> dict[str, int]:
    """Add the aliases to a table of layer and group names."""
    return {alias: indices[name] for alias, name in aliases(names).items()} | indices


def parent_modules(name: str) -> list[str]:
    """The groups of a layer, outermost first: `layer1`, `layer1/0`."""
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _split_problems(
    names: dict[str, int], first_indices: dict[str, int], splits: Sequence[str]
) -> Iterator[Problem]:
    """All problems of the splits; suggestions are actual names, not aliases."""
    for split in dict.fromkeys(splits):
        if split not in first_indices:
            suggestion = suggest(split, names)
            yield Problem(
                SPLITS_OPTION, f"{split!r} is not a layer of this model; {suggestion} ({LIST_HINT})"
            )
        elif first_indices[split] == 0:
            text = f"{split!r} is the first layer: the stage before it would be empty; omit it"
            yield Problem(SPLITS_OPTION, f"{text} ({LIST_HINT})")
    known = [split for split in splits if split in first_indices]
    yield from _duplicate_splits(first_indices, known)
    if any(
        first_indices[following] < first_indices[previous]
        for previous, following in pairwise(known)
    ):
        usable = {
            first_indices[split]: split for split in reversed(known) if first_indices[split] > 0
        }
        ordered = [usable[layer] for layer in sorted(usable)]
        text = f"{' '.join(known)} is out of order; use {' '.join(ordered)}"
        yield Problem(SPLITS_OPTION, f"{text} ({LIST_HINT})")


def _duplicate_splits(first_indices: dict[str, int], known: Sequence[str]) -> Iterator[Problem]:
    """Splits that denote the same layer."""
    seen: dict[int, str] = {}
    for split in known:
        layer = first_indices[split]
        if layer in seen:
            same = f"is the same layer as {seen[layer]!r}"
            text = "is listed twice" if seen[layer] == split else same
            yield Problem(SPLITS_OPTION, f"{split!r} {text}; list it once ({LIST_HINT})")
        seen.setdefault(layer, split)


def balance(costs: Sequence[int], stages: int) -> tuple[int, ...]:
    """Return where each stage starts so that the most expensive stage is as cheap as possible.

    Ties are broken by the least sum of squares, then by the earliest splits, since early stages
    stash the most activations. No stage is empty.
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
    return _balanced_starts(list(accumulate(costs, initial=0)), stages, limit)


def _stages_needed(costs: Sequence[int], limit: int) -> int:
    """Minimum number of stages that cost at most `limit`, filled greedily."""
    stages, cost_of_last = 1, 0
    for cost in costs:
        cost_of_last += cost
        if cost_of_last > limit:
            stages, cost_of_last = stages + 1, cost
    return stages


def _balanced_starts(sums: list[int], stages: int, limit: int) -> tuple[int, ...]:
    """Start of each stage: cost at most `limit`, least sum of squares, earliest splits.

    `sums[i]` is the cost of the first i layers.
    """
    layers = len(sums) - 1
    # Layer → least sum of squares of the stages from there on, and their starts.
    best: dict[int, tuple[int, tuple[int, ...]]] = {layers: (0, ())}
    for _ in range(stages):
        after, best = best, {}
        for start in range(layers):
            ends = range(start + 1, bisect_right(sums, sums[start] + limit))
            candidates = [
                (after[end][0] + (sums[end] - sums[start]) ** 2, end)
                for end in ends
                if end in after
            ]
            if candidates:
                squares, end = min(candidates)
                best[start] = squares, (start, *after[end][1])
    return best[0][1]


LIST_SPLITS = "list"


@dataclass(frozen=True)
class SplitPoint:
    """A layer at which a stage can start, and the costs before and after the split."""

    name: str
    tensors: int  # sent to it
    bytes: int  # of one micro-batch, in each direction
    work_before: float  # fraction of the multiply-adds and norm elements
    parameters_before: int
    parameters_after: int
    activations_before: int  # bytes saved for the backward pass per micro-batch
    activations_after: int
    also: tuple[str, ...]  # aliases in other applications


def lists_splits(config: RunConfig) -> bool:
    return LIST_SPLITS in config.pipeline.pipeline_splits


def split_points(network: NetworkPlan, micro_batch_size: int) -> tuple[SplitPoint, ...]:
    """The split points of a network: every layer but the first."""
    also, sample = _aliases_by_layer(network), FP32_BYTES * micro_batch_size
    work = list(accumulate(cost.work for cost in network.costs))
    parameters = list(accumulate(cost.parameters for cost in network.costs))
    elements = saved_elements(network.layers, network.costs[0].input_shapes[0])
    saved = list(accumulate(sample * count for count in elements))
    return tuple(
        SplitPoint(
            cost.name,
            len(cost.input_shapes),
            sample * sum(shape.elements for shape in cost.input_shapes),
            work[index] / max(1, work[-1]),
            parameters[index],
            parameters[-1] - parameters[index],
            saved[index],
            saved[-1] - saved[index],
            also[cost.name],
        )
        for index, cost in enumerate(network.costs[1:])
    )


def _aliases_by_layer(network: NetworkPlan) -> dict[str, tuple[str, ...]]:
    names = [layer.name for layer in network.layers]
    first_indices, words = split_targets(names), defaultdict[str, tuple[str, ...]](tuple)
    for word, target in aliases(names).items():
        if word not in first_indices:  # layer names take precedence
            words[names[first_indices[target]]] += (word,)
    return words


def splits_as_text(points: Sequence[SplitPoint]) -> list[str]:
    """The output of `--pipeline-splits list`: before the split | after it."""
    title = "a stage can start at"
    width = max(len(title), *(len(point.name) for point in points))
    lines = [f"{title:<{width}}  {'MACs %':^13}  {'parameters':^17}  {'activations':^17}  transfer"]
    for point in points:
        work = 100 * point.work_before
        activations = [
            f"{format_si(point.activations_before)}B",
            f"{format_si(point.activations_after)}B",
        ]
        also = f"  also {', '.join(point.also)}" if point.also else ""
        lines.append(
            f"{point.name:<{width}}  {work:>5.1f} | {100 - work:>5.1f}  "
            f"{format_si(point.parameters_before):>7} | {format_si(point.parameters_after):>7}  "
            f"{activations[0]:>7} | {activations[1]:>7}  "
            f"{format_si(point.bytes)}B in {pluralize(point.tensors, 'tensor')}{also}"
        )
    return lines
