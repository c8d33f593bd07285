"""Weights of other programs for a network of ours, and the folder that `convoy import` makes."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint.format import JSON, Contents, match, weights_sha256
from convoy.checkpoint.store import Store, find_checkpoint
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.settings import binding_values, settings_as_yaml
from convoy.errors import ConfigError, NumericError, StorageError
from convoy.files import atomic_path, check_output, storage_errors, write_atomically
from convoy.layers.export import (
    Classifier,
    OnnxNetwork,
    answers_of_program,
    as_onnx,
    with_batch_of,
    write_program,
)
from convoy.models.layers import ConvSpec
from convoy.models.network import NetworkPlan, plan_network
from convoy.plan.stages import cut
from convoy.run.folder import RunFolder, claim_run_folder, new_run_folder
from convoy.run.network import Network, build_network, whole
from convoy.weights.name_mapping import (
    FittedWeights,
    TargetNetwork,
    fit,
    foreign_tensors,
    write_tensors,
)
from convoy.weights.reading import PUBLISHED, fetch, is_hub, published, read_weights

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
    return place, replace(fitted, notes=[*found.notes, *fitted.notes])


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


TOLERANCE = 1e-4  # relative to the largest answer
_EXAMPLES = 2  # images; a batch of one would be taken for a constant


@dataclass(frozen=True)
class ExportWish:
    """What shall be written, and where."""

    form: str
    naming: str
    output: Path
    batch_size: int | None  # None: any
    override: bool


@dataclass(frozen=True)
class Exported:
    """What was written."""

    file: Path
    format: str
    bytes: int
    checkpoint: Path
    difference: float  # of the answers, relative to the largest; 0 for named weights


def export(config: RunConfig, source: Path, wish: ExportWish) -> Exported:
    """Write one checkpoint: the given one, or the newest sound one of a run."""
    check_output(wish.output, wish.override)
    found, plan = find_checkpoint(source), plan_network(config)
    network = build_network(plan, [whole(plan)], config.data.seed, torch.device("cpu"))
    match(found.contents.model, network.tensors())
    network.load(found.contents.model)
    difference = 0.0
    with storage_errors("write", wish.output):
        wish.output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(wish.output, wish.output.suffix) as draft:
            if wish.form == "safetensors":
                ordered = {name: found.contents.model[name] for name in network.tensors()}
                contents = replace(found.contents, model=ordered)
                _write_weights(draft, config, plan, contents, wish.naming)
            else:
                difference = _write_network(draft, network, plan, wish)
        size = wish.output.stat().st_size
    return Exported(wish.output, wish.form, size, found.path, difference)


def _write_weights(
    draft: Path, config: RunConfig, plan: NetworkPlan, contents: Contents, naming: str
) -> None:
    """In the order of the layers. Read back as `convoy import` would, every bit must be there."""
    count = contents.state.get(TRACKED)
    batches = count if isinstance(count, int) else contents.update
    write_tensors(draft, foreign_tensors(contents.model, naming, batches))
    again = fit(read_weights(draft), target_network(plan, config))
    if weights_sha256(again.model) != weights_sha256(contents.model):
        raise StorageError(f"{draft} was written, but it does not read back; nothing is kept")


@torch.inference_mode()
def _write_network(draft: Path, network: Network, plan: NetworkPlan, wish: ExportWish) -> float:
    """The largest difference between its answers and those of the network."""
    classifier = Classifier(network.slice).eval()
    size = (wish.batch_size or _EXAMPLES, 3, plan.image_size, plan.image_size)
    images = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = classifier(images)
    made = _written(draft, classifier, images, wish)
    difference = float((made - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE:
        raise NumericError(
            f"what {wish.form} makes of this network differs by {difference:.1e} of the largest "
            f"answer, more than {TOLERANCE:g}; nothing was written"
        )
    return difference


def _written(draft: Path, classifier: Classifier, images: Tensor, wish: ExportWish) -> Tensor:
    """The answers of what was written, read back."""
    if wish.form == "torch-export":
        write_program(draft, classifier, images, any_batch=wish.batch_size is None)
        return answers_of_program(draft, images)
    model = as_onnx(classifier.network, images)
    if wish.batch_size is not None:
        model = with_batch_of(model, wish.batch_size)
    draft.write_bytes(model)
    answers: Tensor
    (answers,) = OnnxNetwork(draft.read_bytes(), threads=1)(images)
    return answers
