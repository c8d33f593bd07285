"""Recomputation checkpoints, and the peak memory of activations and gradients of a stage.

layers    a  b  c │ d  e │ f  g        patterns match b's block and e: their last outputs are
stored    in    c      e               stored, and each segment is recomputed before its backward
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.schema import Problem, raise_problems
from convoy.config.sections.parallel import MemoryConfig
from convoy.errors import ConfigError
from convoy.planning.actions import Action, BackwardInput, BackwardWeight, Forward, sends_gradient
from convoy.planning.activations import ActivationFootprint
from convoy.planning.schedules import Schedule
from convoy.planning.stages import parent_modules, with_aliases
from convoy.planning.timetable import prefetched_inputs, timed_actions
from convoy.planning.topology import BatchPlan
from convoy.registry import suggest

CHECKPOINTS_OPTION = "--recompute-checkpoints"


@dataclass(frozen=True)
class RecomputePlan:
    """`checkpoints` are layer names in order; the input of a stage is always stored."""

    enabled: bool
    checkpoints: tuple[str, ...] = ()

    def segment_starts(self, names: Sequence[str]) -> list[int] | None:
        """Where the recomputed segments of a stage start; None if recomputation is off."""
        return segment_starts(names, self.checkpoints) if self.enabled else None


def segment_starts(names: Sequence[str], checkpoints: Sequence[str]) -> list[int]:
    """Segments start at the first layer and after each checkpoint except the last layer."""
    stored = set(checkpoints)
    return [0, *(index + 1 for index, name in enumerate(names[:-1]) if name in stored)]


def resolve_recompute(config: MemoryConfig, schedule: Schedule, stages: int) -> bool:
    """Whether recomputation is on; by default with several stages, if the schedule allows it."""
    allowed = schedule.allows_recompute or stages == 1
    if config.enable_recompute and not allowed:
        raise ConfigError(
            f"--enable-recompute cannot be used with --pipeline-schedule {schedule.name}: each "
            "half of a backward pass would recompute the forward pass; omit it, or use "
            "--pipeline-schedule interleaved"
        )
    default = allowed and stages > 1
    enabled = default if config.enable_recompute is None else config.enable_recompute
    if config.recompute_checkpoints and not enabled:
        reason, fix = f"with --pipeline-schedule {schedule.name}", "choose another schedule"
        if stages == 1:
            reason, fix = "with one stage", "use --enable-recompute"
        if config.enable_recompute is False:
            reason, fix = "by --no-enable-recompute", "use --enable-recompute"
        raise ConfigError(
            f"{CHECKPOINTS_OPTION} has no effect: recomputation is off {reason}; {fix}, or "
            f"omit {CHECKPOINTS_OPTION}"
        )
    return enabled


def plan_recompute(
    patterns: Sequence[str], names: Sequence[str], boundaries: Sequence[int] = ()
) -> RecomputePlan:
    """Resolve patterns into checkpoints.

    `boundaries` are the first layers of stages folded into one process: their inputs are stored.
    """
    # Every name a pattern can match → its layer, or the last layer of a group.
    lasts = {group: index for index, name in enumerate(names) for group in parent_modules(name)}
    lasts |= {name: index for index, name in enumerate(names)}
    aliased = with_aliases(names, lasts)
    raise_problems(_pattern_problems(patterns, lasts, aliased))
    checkpoints = {boundary - 1 for boundary in boundaries}
    for pattern in patterns:
        matches = filter(re.compile(pattern).fullmatch, aliased)
        checkpoints |= {aliased[name] for name in matches}
    return RecomputePlan(True, tuple(names[index] for index in sorted(checkpoints)))


def _pattern_problems(
    patterns: Sequence[str], known: dict[str, int], aliased: dict[str, int]
) -> Iterator[Problem]:
    for pattern in dict.fromkeys(patterns):
        try:
            matches = re.compile(pattern)
        except re.error as error:
            text = f"{pattern!r} is not a valid pattern: {error}; use a layer name such as layer1/0"
            yield Problem(CHECKPOINTS_OPTION, text)
            continue
        if not any(map(matches.fullmatch, aliased)):
            near = suggest(pattern, known)
            yield Problem(CHECKPOINTS_OPTION, f"{pattern!r} matches no layer of this model; {near}")


@dataclass(frozen=True)
class StageTraffic:
    """The actions of a stage in one update, and how far the previous stage runs ahead."""

    actions: Sequence[Action]
    prefetched: Sequence[bool]  # whether the next action's input arrives during this one
    upstream_lead: int  # micro-batches the previous stage sends before its first gradient
    is_first: bool
    is_last: bool


def stage_traffic(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> StageTraffic:
    """Trace a stage over enough micro-batches to reach the steady state.

    If a process has several stages, each is treated as if it were the only one.
    """
    # By then the pipeline is full and repeats.
    traced_micro_batches = min(micro_batches, 3 * schedule.in_flight(stages) + 2)
    orders = timed_actions(schedule, stages, traced_micro_batches)
    actions = [timed for order in orders for timed in order if timed.stage == stage]
    previous_stage = max(0, stage - 1)  # the first stage sends no gradients
    return StageTraffic(
        [timed.action for timed in actions],
        prefetched_inputs(orders, actions),
        schedule.max_lead(previous_stage, stages, micro_batches),
        is_first=stage == 0,
        is_last=stage == stages - 1,
    )


def peak_activations(footprint: ActivationFootprint, traffic: StageTraffic) -> int:
    """Peak activation elements per sample of a stage, as `parallel/executor.py` runs it.

    A sent gradient is retained until a received input proves that it has arrived: the previous
    stage could not have sent that input otherwise.
    """
    input_elements = 0 if traffic.is_first else footprint.input_elements
    output_elements = 0 if traffic.is_last else footprint.output_elements
    stored = peak = 0  # between actions; during one
    sent: deque[int] = deque()  # micro-batches of gradients in transit
    next_actions = [*traffic.actions[1:], None]
    steps = zip(traffic.actions, next_actions, traffic.prefetched, strict=True)
    for action, upcoming, is_prefetched in steps:
        received = input_elements if isinstance(upcoming, Forward) else output_elements
        arriving = received if is_prefetched else 0
        match action:
            case Forward(micro):
                while sent and sent[0] <= micro - traffic.upstream_lead:
                    sent.popleft()
                during = footprint.peak_forward
                after = footprint.stashed
            case BackwardInput(micro) if not traffic.is_first:
                after = footprint.weight_gradient_inputs  # nothing is freed until the weight half
                during = after + footprint.peak_backward - footprint.stashed
            case BackwardWeight() if not traffic.is_first:
                during = 0
                after = -footprint.stashed - footprint.weight_gradient_inputs
            case BackwardWeight():
                continue  # the first stage does not split its backward pass
            case _:
                during = footprint.peak_backward - footprint.stashed
                after = -footprint.stashed
        peak = max(peak, stored + during + input_elements * len(sent) + arriving)
        stored += after
        if sends_gradient(action):
            sent.append(action.micro)
    return peak


@dataclass(frozen=True)
class StageMemory:
    """Peak memory of one process of a stage in bytes, without buffers inside torch's kernels."""

    weights: int
    gradients: int  # one per weight, and the partial sums of the tree
    optimizer_state: int  # on the device
    offloaded: int  # optimizer state stored elsewhere between updates
    stash_sets: int  # micro-batches between their forward and their backward
    stash: int  # stashed by those micro-batches
    activations: int  # stash, the pass in progress, and tensors in transit
    link: int  # sent to the next stage per micro-batch

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.activations


def peak_tree_vectors(batch: BatchPlan) -> int:
    """Vectors of the gradient tree on the replica that needs the most."""
    count = batch.gradient_accumulation
    # The count depends only on the start of a block modulo a power of two above its length.
    span = 1 << count.bit_length()
    different = min(batch.replicas, span // gcd(count, span))
    return max(gradient_tree_vectors(count, replica * count) for replica in range(different))


def gradient_tree_vectors(micro_batches: int, first: int = 0) -> int:
    """Maximum number of partial sums while a block of leaves, starting at `first`, is added up.

    Let m be the index in the block that is divisible by the highest power of two. After the leaves
    up to k there are popcount(m − first) + popcount(k − m) partial sums.
    """
    peak, end = 0, first + micro_batches
    while end > first:
        # The highest bit in which the two ends differ; 0 is divisible by all powers.
        level = ((first - 1) ^ end).bit_length() - 1
        middle = end >> level << level if first else 0
        most_bits = (end - middle + 1).bit_length() - 1  # most set bits of a number up to that
        peak = max(peak, (middle - first).bit_count() + most_bits)
        end = middle - 1
    return peak
