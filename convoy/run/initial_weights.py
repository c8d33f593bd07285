"""Weights to begin with: those of a run, or of a checkpoint, that came before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from convoy.checkpoint.contents import Tensors, match, weights_sha256
from convoy.checkpoint.format import JSON
from convoy.checkpoint.store import find_checkpoint
from convoy.errors import CheckpointError, ConfigError, ConvoyError
from convoy.events import Event, Noticed
from convoy.plan.plan import RunPlan
from convoy.run.import_weights import foreign_weights
from convoy.run.network import build_network, whole

FIRST_WEIGHTS = "first_weights_sha256"  # in the state of a checkpoint


@dataclass(frozen=True)
class Initial:
    """The weights if they are not those of the seed, and what must be told of them."""

    weights: Tensors | None = None
    notices: list[Event] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, JSON]:
        """What every checkpoint of the run will say of them."""
        return {} if self.weights is None else {FIRST_WEIGHTS: weights_sha256(self.weights)}


def initial_facts(state: Mapping[str, JSON]) -> dict[str, JSON]:
    """The same, as a checkpoint of the run says it."""
    return {FIRST_WEIGHTS: state[FIRST_WEIGHTS]} if FIRST_WEIGHTS in state else {}


def initial_weights(plan: RunPlan) -> Initial:
    """What `--init-path` or `--pretrained` leads to."""
    wish = plan.config.checkpoint
    if wish.pretrained is not None:
        return _pretrained(plan, wish.pretrained)
    return Initial() if wish.init_path is None else _of_ours(plan, wish.init_path)


def _pretrained(plan: RunPlan, wish: str) -> Initial:
    """Weights of another program, made to fit: a head for other classes is that of the seed."""
    try:
        place, fitted = foreign_weights(wish, plan.config, plan.network)
    except ConvoyError as error:
        raise type(error)(f"--pretrained {wish}: {error}") from error
    weights = fitted.model
    text = (
        f"begins with the weights of {place}, names of {fitted.naming}, "
        f"sha256 {weights_sha256(weights)}"
    )
    return Initial(weights, [Noticed("init", one, 0) for one in (text, *fitted.notes)])


def _of_ours(plan: RunPlan, wish: str) -> Initial:
    """A run or checkpoint of ours, refused unless it is this very network."""
    if not Path(wish).exists():
        raise ConfigError(f"--init-path {wish} does not exist")
    try:
        found = find_checkpoint(Path(wish))
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
