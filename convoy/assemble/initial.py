"""Weights to begin with: those of a run, or of a checkpoint, that came before."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from convoy.assemble.network import build_network, whole
from convoy.checkpoint import manifest, reading
from convoy.checkpoint.contents import Tensors, match
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.store import Found, Store
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Event, Noticed
from convoy.plan.plan import RunPlan


@dataclass(frozen=True)
class Initial:
    """The weights if they are not those of the seed, and what must be told of them."""

    weights: Tensors | None = None
    notices: list[Event] = field(default_factory=list)


def initial_weights(plan: RunPlan) -> Initial:
    """What `--init-path` leads to, refused unless it is this very network."""
    wish = plan.config.checkpoint.init_path
    if wish is None:
        return Initial()
    try:
        found = _found(Path(wish))
        network = build_network(plan.network, [whole(plan.network)], 0, torch.device("meta"))
        match(found.contents.model, network.tensors())
    except CheckpointError as error:
        raise CheckpointError(f"--init-path {wish}: {error}") from error
    weights = found.contents.model
    text = (
        f"begins with the weights of {found.path} after update {found.contents.update}, "
        f"sha256 {weights_sha256(weights)}"
    )
    passed_over = [Noticed("damaged_checkpoint", one, 0) for one in found.skipped]
    return Initial(weights, [*passed_over, Noticed("init", text, 0)])


def _found(path: Path) -> Found:
    """A checkpoint itself; the newest sound one of a run, or of a folder of checkpoints."""
    if not path.exists():
        raise ConfigError(f"--init-path {path} does not exist")
    if (path / manifest.NAME).exists() or not path.is_dir():
        return Found(reading.load(path), path, [])
    inside = path / "checkpoints"
    return Store(inside if inside.is_dir() else path).newest()
