"""RecomputePlan: which results are kept for the backward pass, and what is computed again.

layers    a  b  c │ d  e │ f  g        patterns name b's block and e: their last results are
kept      in    c      e               kept, and each segment runs again before its backward
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.config.problems import Problem, refuse
from convoy.config.sections.machine import MemoryConfig
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


def plan_recompute(
    wish: MemoryConfig, names: Sequence[str], stages: int, borders: Sequence[int] = ()
) -> RecomputePlan:
    """The plan for all layers of a network that is cut into so many stages.

    `borders` are the first layers of stages that run in one process: what comes into them is kept.
    """
    enabled = stages > 1 if wish.enable_recompute is None else wish.enable_recompute
    lasts = _last_layers(names)
    refuse(_problems(wish, enabled, lasts, stages))
    if not enabled:
        return RecomputePlan(enabled)
    kept = {lasts[word] for word in _matched(wish.recompute_checkpoints, lasts)}
    kept |= {border - 1 for border in borders}
    return RecomputePlan(enabled, tuple(names[index] for index in sorted(kept)))


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
    wish: MemoryConfig, enabled: bool, words: dict[str, int], stages: int
) -> Iterator[Problem]:
    patterns = dict.fromkeys(wish.recompute_checkpoints)
    if patterns and not enabled:
        yield Problem(OPTION, _has_no_effect(wish, stages))
    for pattern in patterns:
        try:
            matches = re.compile(pattern)
        except re.error as error:
            text = f"{pattern!r} is no pattern: {error}; the name of a layer is one, as layer1/0"
            yield Problem(OPTION, text)
            continue
        if not any(map(matches.fullmatch, words)):
            near = suggest(pattern, words)
            yield Problem(OPTION, f"{pattern!r} matches no layer of this model; {near}")


def _has_no_effect(wish: MemoryConfig, stages: int) -> str:
    why = "with one stage" if wish.enable_recompute is None else "by --no-enable-recompute"
    assert wish.enable_recompute is False or stages == 1
    return (
        f"says what recomputation keeps, but recomputation is off {why}; "
        "use --enable-recompute, or leave it out"
    )
