"""RecomputePlan: which results are kept for the backward pass, and what is computed again.

layers    a  b  c │ d  e │ f  g        patterns name b's block and e: their last results are
kept      in    c      e               kept, and each segment runs again before its backward
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.config.sections.parallel import MemoryConfig
from convoy.config.settings import Problem, refuse
from convoy.errors import ConfigError
from convoy.models.split_points import aliases
from convoy.plan.schedules.one_f_one_b import Schedule
from convoy.plan.stages import groups_of
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
    lasts = _last_layers(names)
    further = {word: lasts[meant] for word, meant in aliases(names).items()} | lasts
    refuse(_problems(patterns, lasts, further))
    kept = {further[word] for word in _matched(patterns, further)}
    kept |= {border - 1 for border in borders}
    return RecomputePlan(True, tuple(names[index] for index in sorted(kept)))


def _last_layers(names: Sequence[str]) -> dict[str, int]:
    """Every word a pattern may match → the layer it means: itself, or the last one of a group."""
    lasts = {
        group: index for index, name in enumerate(names) for group in groups_of(name)
    }  # a later layer of the group replaces an earlier one
    return lasts | {name: index for index, name in enumerate(names)}


def _matched(patterns: Sequence[str], words: dict[str, int]) -> Iterator[str]:
    for pattern in patterns:
        yield from filter(re.compile(pattern).fullmatch, words)


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
