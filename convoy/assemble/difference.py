"""How far two checkpoints are apart."""

from pathlib import Path

from convoy.checkpoint.store import Store


def largest_difference(run: Path, other: Path) -> float:
    """Of any weight in the newest checkpoints; running statistics have scales of their own."""
    ours, theirs = (Store(one / "checkpoints").newest().contents.model for one in (run, other))
    weights = [name for name in ours if ".running_" not in name]
    return max(float((ours[name] - theirs[name]).abs().max()) for name in weights)
