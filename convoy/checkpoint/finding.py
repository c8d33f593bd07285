"""The checkpoint that a path means: itself, or the newest sound one of a run or of a folder.

Of a run that was fine-tuned, or has begun to be, that is one of its second phase.
"""

from pathlib import Path

from convoy.checkpoint import manifest, reading
from convoy.checkpoint.store import Found, Store
from convoy.plan.places import FINE_TUNE


def found_at(path: Path) -> Found:
    """CheckpointError where there is none that can be used."""
    if (path / manifest.NAME).exists() or not path.is_dir():
        return Found(reading.load(path), path, [])
    tuned = Store(path / FINE_TUNE / "checkpoints")
    if tuned.updates():
        return tuned.newest()
    inside = path / "checkpoints"
    return Store(inside if inside.is_dir() else path).newest()
