"""Import weights of other libraries, and export checkpoints."""

import json
from collections.abc import Collection, Mapping
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
from convoy.run.prediction import describe_for_prediction, imagenet_metadata
from convoy.weights.library_networks import (
    TIMM,
    TORCHVISION,
    LibraryNetwork,
    ambiguity,
    choose_origin,
    describe_differences,
    different_options,
    explain_difference,
    find_candidates,
    same_network,
)
from convoy.weights.name_mapping import (
    CONVOY,
    FittedWeights,
    TargetNetwork,
    fit_weights,
    libraries_with_names,
    to_external,
)
from convoy.weights.reading import (
    PREDICTION,
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


@dataclass(frozen=True)
class LoadedWeights:
    """Weights under our names, and the networks that they can come from."""

    source: str
    fitted: FittedWeights
    candidates: list[LibraryNetwork]  # empty for a run or a checkpoint of convoy

    def origin(self, architecture: str | None = None) -> LibraryNetwork | None:
        """The network that the weights come from, if that is known."""
        name = self.source if is_hub_address(self.source) else Path(self.source).name
        return choose_origin(name, self.candidates, architecture or self.fitted.architecture)


def load_foreign_weights(source: str, config: RunConfig, plan: NetworkPlan) -> LoadedWeights:
    """Load weights from a file, a run, the hub or `published`, and fit them to the network."""
    model = config.network.model
    source = published_address(model) if source == PUBLISHED else source
    weights = read_weights(download_from_hub(source) if is_hub_address(source) else Path(source))
    fitted = fit_weights(weights, target_network(plan, config))
    fitted = replace(fitted, notes=[*weights.notes, *fitted.notes])
    is_ours = not is_hub_address(source) and Path(source).is_dir()
    libraries = () if is_ours else libraries_with_names(fitted.naming, list(fitted.model))
    candidates = find_candidates(config, plan.classes, libraries)
    return LoadedWeights(source if is_hub_address(source) else weights.source, fitted, candidates)


def origin_of_import(
    loaded: LoadedWeights, config: RunConfig, given: Collection[str], architecture: str | None
) -> LibraryNetwork | None:
    """The network whose options an import uses; `given` are the options that the user has set.

    Raises ConfigError if several networks have these names.
    """
    possible = [
        network
        for network in loaded.candidates
        if architecture or not different_options(config, network).keys() & given
    ]
    origin = replace(loaded, candidates=possible or loaded.candidates).origin(architecture)
    if origin is None and len(possible) > 1:
        raise ConfigError(ambiguity(loaded.source, possible))
    return origin


def origin_notes(loaded: LoadedWeights, config: RunConfig) -> list[str]:
    """Say in what the network of a run differs from that of its pretrained weights."""
    origin = loaded.origin()
    if origin is None and loaded.candidates:
        return [ambiguity(loaded.source, loaded.candidates).partition(":")[0]]
    if origin is None or not different_options(config, origin):
        return []
    return [f"{origin} is another network: {describe_differences(config, origin)}"]


def import_weights(
    resolved: ResolvedConfig, loaded: LoadedWeights, origin: LibraryNetwork | None
) -> ImportResult:
    """Create a run folder with the weights as its only checkpoint, and their options."""
    config = resolved.config
    source, fitted = loaded.source, loaded.fitted
    notes = [] if origin is None else _import_notes(config, origin)
    fitted = replace(fitted, notes=[*fitted.notes, *notes])
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


def _import_notes(config: RunConfig, origin: LibraryNetwork) -> list[str]:
    """The options that come from the library, and those in which the import differs from it."""
    different = different_options(config, origin)
    same = {name: value for name, value in origin.options.items() if name not in different}
    flags = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in same.items())
    notes = [f"{flags}, as in {origin}"] if same else []
    if different:
        notes.append(f"{origin} is another network: {describe_differences(config, origin)}")
    return notes


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
    naming: str | None  # None: that of a library that has the network, else convoy's
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
    naming: str | None = None  # of the weights in safetensors
    architecture: str | None = None  # name of the network in that library


def export(config: RunConfig, source: Path, request: ExportRequest) -> ExportResult:
    """Export a checkpoint: the given one, or the newest valid one of a run."""
    check_output(request.output, request.overwrite)
    checkpoint, plan = find_checkpoint(source), plan_network(config)
    naming, same = _choose_naming(config, plan, request)
    about = _describe(config, plan, checkpoint.contents.state, same)
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
                _write_weights(temporary_path, config, plan, contents, naming, about)
            else:
                difference = _write_network(temporary_path, network, plan, request, about)
        size = request.output.stat().st_size
    result = ExportResult(request.output, request.format, size, checkpoint.path, difference)
    if request.format != "safetensors":
        return result
    return replace(result, naming=naming, architecture=None if same is None else same.name)


def _describe(
    config: RunConfig,
    plan: NetworkPlan,
    state: Mapping[str, JSON],
    same: LibraryNetwork | None,
) -> str:
    """Describe the network for prediction without convoy, as JSON."""
    name = None if same is None else f"{same.library}/{same.name}"
    about = {"architecture": name, **describe_for_prediction(config, plan, state)}
    return json.dumps(about, ensure_ascii=False)


def _choose_naming(
    config: RunConfig, plan: NetworkPlan, request: ExportRequest
) -> tuple[str, LibraryNetwork | None]:
    """The naming, and the network of that library; ConfigError if the library has another one."""
    libraries = (TORCHVISION, TIMM) if request.naming is None else (request.naming,)
    same = same_network(config, plan.classes, *libraries)
    if same is not None:
        return same.library, same
    if request.naming in (TORCHVISION, TIMM):
        raise ConfigError(explain_difference(config, plan.classes, request.naming))
    return CONVOY, None


def _write_weights(
    temporary_path: Path,
    config: RunConfig,
    plan: NetworkPlan,
    contents: CheckpointContents,
    naming: str,
    about: str,
) -> None:
    """Write the weights in layer order, and verify that they read back bit-exactly."""
    count = contents.state.get(BATCHES_TRACKED)
    batches = count if isinstance(count, int) else contents.update
    with temporary_path.open("wb") as file:
        metadata = {"format": "pt", PREDICTION: about}
        tensors = to_external(contents.model, naming, batches)
        file.writelines(TensorFile(tensors, metadata).chunks())
    read_back = fit_weights(read_weights(temporary_path), target_network(plan, config))
    if weights_sha256(read_back.model) != weights_sha256(contents.model):
        raise StorageError(f"{temporary_path} does not read back as written; nothing was saved")


@torch.inference_mode()
def _write_network(
    temporary_path: Path,
    network: Network,
    plan: NetworkPlan,
    request: ExportRequest,
    about: str,
) -> float:
    """Export the network; return the largest output difference of the exported file."""
    classifier = LogitsWrapper(network.slice).eval()
    size = (request.batch_size or _EXAMPLE_BATCH_SIZE, 3, plan.image_size, plan.image_size)
    images = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = classifier(images)
    if request.format == "torch-export":
        extra_files = {f"{PREDICTION}.json": about}
        save_exported_program(
            temporary_path, classifier, images, request.batch_size is None, extra_files
        )
        outputs = run_exported_program(temporary_path, images)
    else:
        model = export_onnx(classifier.network, images, {PREDICTION: about})
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
