"""How far two checkpoints are apart."""

from pathlib import Path

from convoy.checkpoint.store import Store


def largest_difference(run: Path, other: Path) -> float:
    """Of any weight or statistic in the newest checkpoints."""
    ours, theirs = (Store(one / "checkpoints").newest().contents.model for one in (run, other))
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
