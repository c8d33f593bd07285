"""Weights of other programs for a network of ours, and the folder that `convoy import` makes."""

from dataclasses import dataclass
from pathlib import Path

import torch

from convoy.checkpoint.contents import Contents, weights_sha256
from convoy.checkpoint.format import JSON
from convoy.checkpoint.store import Store
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.settings import binding_values, settings_as_yaml
from convoy.errors import ConfigError
from convoy.files import write_atomically
from convoy.models.layers import ConvSpec
from convoy.models.network import NetworkPlan, plan_network
from convoy.plan.stages import cut
from convoy.run.folder import RunFolder, claim_run_folder, new_run_folder
from convoy.run.network import build_network, whole
from convoy.weights.fitting import FittedWeights, TargetNetwork, fit
from convoy.weights.hub import PUBLISHED, fetch, is_hub, published
from convoy.weights.reading import read_weights

IMPORTED = "imported"  # in the state of a checkpoint: where its weights came from
TRACKED = "batches_tracked"


@dataclass(frozen=True)
class Imported:
    """What was written, and what must be told of it."""

    folder: Path
    place: str
    fitted: FittedWeights
    weights_sha256: str


def foreign_weights(wish: str, config: RunConfig, plan: NetworkPlan) -> tuple[str, FittedWeights]:
    """What a wish leads to, made to fit: a file, a run of ours, the hub, or `published`."""
    model = config.network.model
    place = published(model) if wish == PUBLISHED else wish
    found = read_weights(fetch(place) if is_hub(place) else Path(place))
    fitted = fit(found, target_network(plan, config))
    place = place if is_hub(place) else found.source
    return place, FittedWeights(
        fitted.model, fitted.naming, [*found.notes, *fitted.notes], fitted.batches_tracked
    )


def import_weights(resolved: Resolved, wish: str) -> Imported:
    """A folder with the weights as its only checkpoint, and the options they belong to."""
    config = resolved.config
    place, fitted = foreign_weights(wish, config, plan_network(config))
    state: dict[str, JSON] = {
        "update": 0,
        "epoch": 0.0,
        IMPORTED: place,
        TRACKED: fitted.batches_tracked,
        "options": binding_values(resolved.settings),
    }
    output = config.checkpoint.checkpoint_output_path
    if output is not None and RunFolder(Path(output)).holds_run:
        raise ConfigError(f"{output} holds weights or a run already; choose another --output")
    stem = f"{config.network.model}-imported"
    with (
        claim_run_folder(Path(output))
        if output is not None
        else new_run_folder(Path(config.report.log_dir), config.report.name, stem)
    ) as folder:
        Store(folder.checkpoints).save(Contents(model=fitted.model, state=state), 0)
        write_atomically(folder.config, [settings_as_yaml(resolved.settings).encode()])
    return Imported(folder.path, place, fitted, weights_sha256(fitted.model))


def target_network(plan: NetworkPlan, config: RunConfig) -> TargetNetwork:
    """The head is built with the seed: a layer's first weights depend on its name alone."""
    seed = config.data.seed
    weighted = [layer for layer in plan.layers if layer.operation.parameters]
    stem = next(layer for layer in weighted if isinstance(layer.operation, ConvSpec))
    *_, last = cut([layer.name for layer in plan.layers], [weighted[-1].name])
    forms = build_network(plan, [whole(plan)], seed, torch.device("meta")).tensors()
    head = build_network(plan, [last], seed, torch.device("cpu")).tensors()
    return TargetNetwork(config.network.model, forms, head, f"{stem.name.replace('/', '.')}.weight")
