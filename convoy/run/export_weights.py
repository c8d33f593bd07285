"""A checkpoint for other programs: named weights, a torch.export program, or ONNX.

What was written is read back and must answer like the network it came from; only then does the
file get its name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint.contents import Contents, match, weights_sha256
from convoy.checkpoint.store import find_checkpoint
from convoy.config.schema import RunConfig
from convoy.errors import ConfigError, NumericError, StorageError
from convoy.files import atomic_path, storage_errors
from convoy.layers.export import (
    Classifier,
    OnnxNetwork,
    answers_of_program,
    as_onnx,
    with_batch_of,
    write_program,
)
from convoy.models.network import NetworkPlan, plan_network
from convoy.run.import_weights import TRACKED, target_network
from convoy.run.network import Network, build_network, whole
from convoy.weights.fitting import fit, foreign_tensors, write_tensors
from convoy.weights.reading import read_weights

TOLERANCE = 1e-4  # relative to the largest answer
_EXAMPLES = 2  # images; a batch of one would be taken for a constant
_THREADS = 1


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


Writer = Callable[[Path, Classifier, Tensor, ExportWish], Tensor]  # gives the answers read back


def export(config: RunConfig, source: Path, wish: ExportWish) -> Exported:
    """Write one checkpoint: the given one, or the newest sound one of a run."""
    if wish.output.is_dir():
        raise ConfigError(f"--output {wish.output} is a folder; name a file")
    if wish.output.exists() and not wish.override:
        raise ConfigError(
            f"{wish.output} exists already; choose another --output, or add --override"
        )
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
    made = _WRITERS[wish.form](draft, classifier, images, wish)
    difference = float((made - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE:
        raise NumericError(
            f"what {wish.form} makes of this network differs by {difference:.1e} of the largest "
            f"answer, more than {TOLERANCE:g}; nothing was written"
        )
    return difference


def _program(draft: Path, classifier: Classifier, images: Tensor, wish: ExportWish) -> Tensor:
    write_program(draft, classifier, images, any_batch=wish.batch_size is None)
    return answers_of_program(draft, images)


def _onnx(draft: Path, classifier: Classifier, images: Tensor, wish: ExportWish) -> Tensor:
    model = as_onnx(classifier.network, images)
    if wish.batch_size is not None:
        model = with_batch_of(model, wish.batch_size)
    draft.write_bytes(model)
    made: Tensor
    (made,) = OnnxNetwork(draft.read_bytes(), _THREADS)(images)
    return made


_WRITERS: dict[str, Writer] = {"torch-export": _program, "onnx": _onnx}
