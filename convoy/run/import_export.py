"""Import weights of other libraries, and export checkpoints."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from convoy.checkpoint.format import (
    JSON,
    CheckpointContents,
    TensorFile,
    check_match,
    weights_sha256,
)
from convoy.checkpoint.store import CheckpointStore, find_checkpoint
from convoy.config.resolve import ResolvedConfig
from convoy.config.schema import RunConfig, settings_as_yaml, training_values
from convoy.errors import ConfigError, NumericError, StorageError
from convoy.files import atomic_path, check_output, storage_errors, write_atomically
from convoy.layers.export import (
    LogitsWrapper,
    OnnxNetwork,
    export_onnx,
    run_exported_program,
    save_exported_program,
    with_fixed_batch_size,
)
from convoy.models.layers import ConvSpec
from convoy.models.network import NetworkPlan, plan_network
from convoy.planning.stages import split_into_stages
from convoy.run.folder import RunFolder, new_run_folder
from convoy.run.network import Network, build_network
from convoy.run.prediction import imagenet_metadata
from convoy.weights.name_mapping import FittedWeights, TargetNetwork, fit_weights, to_external
from convoy.weights.reading import (
    PUBLISHED,
    download_from_hub,
    is_hub_address,
    published_address,
    read_weights,
)

IMPORTED_FROM = "imported"  # key in a checkpoint's state: source of its weights
BATCHES_TRACKED = "batches_tracked"


@dataclass(frozen=True)
class ImportResult:
    """What was imported."""

    folder: Path
    source: str
    fitted: FittedWeights
    weights_sha256: str


def load_foreign_weights(
    source: str, config: RunConfig, plan: NetworkPlan
) -> tuple[str, FittedWeights]:
    """Load weights from a file, a run, the hub or `published`, and fit them to the network."""
    model = config.network.model
    source = published_address(model) if source == PUBLISHED else source
    weights = read_weights(download_from_hub(source) if is_hub_address(source) else Path(source))
    fitted = fit_weights(weights, target_network(plan, config))
    source = source if is_hub_address(source) else weights.source
    return source, replace(fitted, notes=[*weights.notes, *fitted.notes])


def import_weights(resolved: ResolvedConfig, source: str) -> ImportResult:
    """Create a run folder with the weights as its only checkpoint, and their options."""
    config = resolved.config
    source, fitted = load_foreign_weights(source, config, plan_network(config))
    state: dict[str, JSON] = {
        "update": 0,
        "epoch": 0.0,
        IMPORTED_FROM: source,
        BATCHES_TRACKED: fitted.num_batches_tracked,
        "options": training_values(resolved.settings),
        **imagenet_metadata(plan_network(config)),
    }
    output = config.checkpoint.checkpoint_output_path
    if output is not None and RunFolder(Path(output)).has_run:
        raise ConfigError(f"{output} already contains weights or a run; choose another --output")
    with new_run_folder(config, f"{config.network.model}-imported") as folder:
        contents = CheckpointContents(model=fitted.model, state=state)
        CheckpointStore(folder.checkpoints).save(contents)
        write_atomically(folder.config, [settings_as_yaml(resolved.settings).encode()])
    return ImportResult(folder.path, source, fitted, weights_sha256(fitted.model))


def target_network(plan: NetworkPlan, config: RunConfig) -> TargetNetwork:
    """Describe the target. The head is initialized, which depends only on seed and name."""
    seed = config.data.seed
    weighted = [layer for layer in plan.layers if layer.operation.parameters]
    stem = next(layer.name for layer in weighted if isinstance(layer.operation, ConvSpec))
    *_, last = split_into_stages([layer.name for layer in plan.layers], [weighted[-1].name])
    shapes = build_network(plan, seed, torch.device("meta")).tensors()
    head = build_network(plan, seed, torch.device("cpu"), [last]).tensors()
    return TargetNetwork(config.network.model, shapes, head, f"{stem.replace('/', '.')}.weight")


TOLERANCE = 1e-4  # relative to the largest output
_EXAMPLE_BATCH_SIZE = 2  # a batch of 1 would be traced as a constant


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and where."""

    format: str
    naming: str
    output: Path
    batch_size: int | None  # None: any
    overwrite: bool


@dataclass(frozen=True)
class ExportResult:
    """What was exported."""

    file: Path
    format: str
    bytes: int
    checkpoint: Path
    difference: float  # of the outputs, relative to the largest; 0 for weights


def export(config: RunConfig, source: Path, request: ExportRequest) -> ExportResult:
    """Export a checkpoint: the given one, or the newest valid one of a run."""
    check_output(request.output, request.overwrite)
    checkpoint, plan = find_checkpoint(source), plan_network(config)
    network = build_network(plan, config.data.seed, torch.device("cpu"))
    check_match(checkpoint.contents.model, network.tensors())
    network.load(checkpoint.contents.model)
    difference = 0.0
    with storage_errors("write", request.output):
        request.output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(request.output, request.output.suffix) as temporary_path:
            if request.format == "safetensors":
                ordered = {name: checkpoint.contents.model[name] for name in network.tensors()}
                contents = replace(checkpoint.contents, model=ordered)
                _write_weights(temporary_path, config, plan, contents, request.naming)
            else:
                difference = _write_network(temporary_path, network, plan, request)
        size = request.output.stat().st_size
    return ExportResult(request.output, request.format, size, checkpoint.path, difference)


def _write_weights(
    temporary_path: Path,
    config: RunConfig,
    plan: NetworkPlan,
    contents: CheckpointContents,
    naming: str,
) -> None:
    """Write the weights in layer order, and verify that they read back bit-exactly."""
    count = contents.state.get(BATCHES_TRACKED)
    batches = count if isinstance(count, int) else contents.update
    with temporary_path.open("wb") as file:
        file.writelines(TensorFile(to_external(contents.model, naming, batches)).chunks())
    read_back = fit_weights(read_weights(temporary_path), target_network(plan, config))
    if weights_sha256(read_back.model) != weights_sha256(contents.model):
        raise StorageError(f"{temporary_path} does not read back as written; nothing was saved")


@torch.inference_mode()
def _write_network(
    temporary_path: Path, network: Network, plan: NetworkPlan, request: ExportRequest
) -> float:
    """Export the network; return the largest output difference of the exported file."""
    classifier = LogitsWrapper(network.slice).eval()
    size = (request.batch_size or _EXAMPLE_BATCH_SIZE, 3, plan.image_size, plan.image_size)
    images = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = classifier(images)
    if request.format == "torch-export":
        save_exported_program(
            temporary_path, classifier, images, dynamic_batch=request.batch_size is None
        )
        outputs = run_exported_program(temporary_path, images)
    else:
        model = export_onnx(classifier.network, images)
        if request.batch_size is not None:
            model = with_fixed_batch_size(model, request.batch_size)
        temporary_path.write_bytes(model)
        (outputs,) = OnnxNetwork(temporary_path.read_bytes(), threads=1)(images)
    difference = float((outputs - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE:
        raise NumericError(
            f"the outputs of the {request.format} export differ by {difference:.1e} of the largest "
            f"output, more than {TOLERANCE:g}; nothing was written"
        )
    return difference
