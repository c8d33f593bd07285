"""How far two checkpoints are apart."""

from pathlib import Path

from convoy.checkpoint.store import Store


def largest_difference(run: Path, other: Path) -> float:
    """Over all weights of the newest checkpoints, as a share of each tensor's largest value."""
    ours, theirs = (Store(one / "checkpoints").newest().contents.model for one in (run, other))
    return max(
        float((ours[name] - theirs[name]).abs().max() / ours[name].abs().max().clamp_min(1e-30))
        for name in ours
    )
