"""What recomputation keeps, and what the micro-batches and the gradients of a stage hold at most.

layers    a  b  c │ d  e │ f  g        patterns name b's block and e: their last results are
kept      in    c      e               kept, and each segment runs again before its backward
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.sections.parallel import MemoryConfig
from convoy.config.settings import Problem, refuse
from convoy.errors import ConfigError
from convoy.plan.actions import (
    Action,
    BackwardInput,
    BackwardWeight,
    Forward,
    answers,
)
from convoy.plan.activations import ActivationFootprint
from convoy.plan.schedules import Schedule
from convoy.plan.stages import aliases, groups_of
from convoy.plan.timetable import received_ahead, timed_orders
from convoy.plan.topology import BatchPlan
from convoy.registry import suggest

OPTION = "--recompute-checkpoints"


@dataclass(frozen=True)
class RecomputePlan:
    """`kept` are exact names of layers, in their order; the input of a stage is always kept."""

    enabled: bool
    kept: tuple[str, ...] = ()

    def starts(self, names: Sequence[str]) -> list[int] | None:
        """Where the segments of a stage with these layers begin; None: nothing runs again."""
        return segment_starts(names, self.kept) if self.enabled else None


def segment_starts(names: Sequence[str], kept: Sequence[str]) -> list[int]:
    """Segments begin at the first layer, and after each kept one but the last."""
    chosen = set(kept)
    return [0, *(index + 1 for index, name in enumerate(names[:-1]) if name in chosen)]


def recomputes(wish: MemoryConfig, schedule: Schedule, stages: int) -> bool:
    """Whether so many stages compute again; unset: where there are several that may."""
    allowed = schedule.allows_recompute or stages == 1
    if wish.enable_recompute and not allowed:
        raise ConfigError(
            f"--enable-recompute cannot be used with --pipeline-schedule {schedule.name}: each "
            "half of a backward pass would compute its forward again; leave it out, or use "
            "--pipeline-schedule interleaved"
        )
    unasked = allowed and stages > 1
    enabled = unasked if wish.enable_recompute is None else wish.enable_recompute
    if wish.recompute_checkpoints and not enabled:
        raise ConfigError(f"{OPTION} {_has_no_effect(wish, schedule, stages)}")
    return enabled


def _has_no_effect(wish: MemoryConfig, schedule: Schedule, stages: int) -> str:
    way_out = "use --enable-recompute"
    if wish.enable_recompute is False:
        why = "by --no-enable-recompute"
    elif stages == 1:
        why = "with one stage"
    else:
        why, way_out = f"with --pipeline-schedule {schedule.name}", "choose another schedule"
    return (
        f"says what recomputation keeps, but recomputation is off {why}; {way_out}, or leave it out"
    )


def plan_recompute(
    patterns: Sequence[str], names: Sequence[str], borders: Sequence[int] = ()
) -> RecomputePlan:
    """What all layers of a network keep.

    `borders` are the first layers of stages that run in one process: what comes into them is kept.
    """
    # Every word a pattern may match → the layer it means: itself, or the last one of a group.
    lasts = {group: index for index, name in enumerate(names) for group in groups_of(name)}
    lasts |= {name: index for index, name in enumerate(names)}
    further = {word: lasts[meant] for word, meant in aliases(names).items()} | lasts
    refuse(_problems(patterns, lasts, further))
    kept = {border - 1 for border in borders}
    for pattern in patterns:
        kept |= {further[word] for word in filter(re.compile(pattern).fullmatch, further)}
    return RecomputePlan(True, tuple(names[index] for index in sorted(kept)))


def _problems(
    patterns: Sequence[str], words: dict[str, int], further: dict[str, int]
) -> Iterator[Problem]:
    for pattern in dict.fromkeys(patterns):
        try:
            matches = re.compile(pattern)
        except re.error as error:
            text = f"{pattern!r} is no pattern: {error}; the name of a layer is one, as layer1/0"
            yield Problem(OPTION, text)
            continue
        if not any(map(matches.fullmatch, further)):
            near = suggest(pattern, words)
            yield Problem(OPTION, f"{pattern!r} matches no layer of this model; {near}")


@dataclass(frozen=True)
class StageTraffic:
    """What a stage does in an update, and how far the stage before it runs ahead of it."""

    actions: Sequence[Action]
    received_ahead: Sequence[bool]  # the input of the next action arrives while this one runs
    lead_before: int  # micro-batches that it has sent, at most, before the gradient of the first
    is_first: bool
    is_last: bool


def stage_traffic(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> StageTraffic:
    """Of as many micro-batches as it takes until nothing new happens.

    A stage of a process that holds several is taken as if it had the process to itself.
    """
    # The pipeline is full by then and repeats itself.
    enough = min(micro_batches, 3 * schedule.in_flight(stages) + 2)
    orders = timed_orders(schedule, stages, enough)
    row = [timed for order in orders for timed in order if timed.stage == stage]
    before = max(0, stage - 1)  # the first stage sends no gradients
    return StageTraffic(
        [timed.action for timed in row],
        received_ahead(orders, row),
        schedule.unanswered(before, stages, micro_batches),
        is_first=stage == 0,
        is_last=stage == stages - 1,
    )


def most_held(footprint: ActivationFootprint, traffic: StageTraffic) -> int:
    """Elements of one sample that a stage holds at most, as `parallel/executor.py` runs it.

    A gradient that was sent is held until the input of a forward pass proves that it has arrived:
    the stage before could not have sent that one otherwise.
    """
    back = 0 if traffic.is_first else footprint.came_in
    onward = 0 if traffic.is_last else footprint.goes_out
    held = most = 0  # between passes; during one
    sent: deque[int] = deque()  # gradients
    following = [*traffic.actions[1:], None]
    for action, then, is_ahead in zip(
        traffic.actions, following, traffic.received_ahead, strict=True
    ):
        arriving = (back if isinstance(then, Forward) else onward) if is_ahead else 0
        match action:
            case Forward(micro):
                while sent and sent[0] <= micro - traffic.lead_before:
                    sent.popleft()
                during = footprint.forward
                after = footprint.between
            case BackwardInput(micro) if not traffic.is_first:
                during = footprint.answers + footprint.backward - footprint.between
                after = footprint.answers  # nothing is freed: all of it waits for the other part
            case BackwardWeight() if not traffic.is_first:
                during = 0
                after = -footprint.between - footprint.answers
            case BackwardWeight():
                continue  # nobody waits for the first stage's gradients, so its pass is whole
            case _:
                during = footprint.backward - footprint.between
                after = -footprint.between
        most = max(most, held + during + back * len(sent) + arriving)
        held += after
        if answers(action):
            sent.append(action.micro)
    return most


@dataclass(frozen=True)
class StageMemory:
    """What one process of a stage holds at most. Buffers inside torch's kernels come on top."""

    weights: int
    gradients: int  # one in the weights, and the partial sums of the tree
    optimizer_state: int  # on the device
    offloaded: int  # optimizer state that lies elsewhere between updates
    stash_sets: int  # micro-batches between their forward and their backward
    stash: int  # what they keep meanwhile
    activations: int  # the stash, the pass that is being made, and what is on its way
    link: int  # what one micro-batch sends to the next stage, if there is one

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.activations


def most_sums(batch: BatchPlan) -> int:
    """Vectors of the gradient tree on the replica that needs most of them."""
    count = batch.gradient_accumulation
    # Only where a block begins between two multiples of a power of two above its length matters.
    span = 1 << count.bit_length()
    different = min(batch.replicas, span // gcd(count, span))
    return max(tree_vectors(count, replica * count) for replica in range(different))


def tree_vectors(micro_batches: int, first: int = 0) -> int:
    """Sums that wait at most while a block of leaves is added up, from the leaf `first` on.

    Up to the most even number in the block the waiting sums grow, behind it they shrink: as many
    as there are ones in the two distances.
    """
    most, end = 0, first + micro_batches
    while end > first:
        middle = _most_even(first, end)
        behind = (end - middle + 1).bit_length() - 1  # the most ones of a number up to that
        most = max(most, (middle - first).bit_count() + behind)
        end = middle - 1
    return most


def _most_even(first: int, last: int) -> int:
    """The number of a range that can be halved most often; 0 is the most even of all."""
    for level in range(last.bit_length(), -1, -1):
        number = last >> level << level
        if number >= first:
            return number
    raise AssertionError("level 0 is the last number itself")
