"""Weights of other programs for a network of ours, and the folder that `convoy import` makes."""

from dataclasses import dataclass
from pathlib import Path

import torch

from convoy.assemble.network import build_network, whole
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.store import Store
from convoy.checkpoint.strict_json import JSON
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.written import binding_values, settings_as_yaml
from convoy.errors import ConfigError
from convoy.plan.network import NetworkPlan, plan_network
from convoy.plan.operations import Conv
from convoy.plan.stages import cut
from convoy.report.run_folder import RunFolder, claim_run_folder, new_run_folder, write_atomically
from convoy.weights.fitting import Fitted, Wanted, fit
from convoy.weights.hub import fetch, is_hub
from convoy.weights.published import PUBLISHED, published
from convoy.weights.reading import read_weights

IMPORTED = "imported"  # in the state of a checkpoint: where its weights came from
TRACKED = "batches_tracked"


@dataclass(frozen=True)
class Imported:
    """What was written, and what must be told of it."""

    folder: Path
    place: str
    fitted: Fitted
    weights_sha256: str


def foreign_weights(wish: str, config: RunConfig, plan: NetworkPlan) -> tuple[str, Fitted]:
    """What a wish leads to, made to fit: a file, a run of ours, the hub, or `published`."""
    model = config.network.model
    place = published(model) if wish == PUBLISHED else wish
    found = read_weights(fetch(place) if is_hub(place) else Path(place))
    fitted = fit(found, wanted_by(plan, config))
    place = place if is_hub(place) else found.place
    return place, Fitted(
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


def wanted_by(plan: NetworkPlan, config: RunConfig) -> Wanted:
    """The head is built with the seed: a layer's first weights depend on its name alone."""
    seed = config.data.seed
    weighted = [layer for layer in plan.layers if layer.operation.parameters]
    stem = next(layer for layer in weighted if isinstance(layer.operation, Conv))
    *_, last = cut([layer.name for layer in plan.layers], [weighted[-1].name])
    forms = build_network(plan, [whole(plan)], seed, torch.device("meta")).tensors()
    head = build_network(plan, [last], seed, torch.device("cpu")).tensors()
    return Wanted(config.network.model, forms, head, f"{stem.name.replace('/', '.')}.weight")
