"""Small networks for tests: their layers, and slices of all layers."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from convoy.config.sections.network import NetworkConfig
from convoy.layers.build import build_layers
from convoy.models.layers import LayerPlan, LinearSpec
from convoy.models.resnet import resnet_layers
from convoy.parallel.channels import StageChannels
from convoy.parallel.executor import (
    Loss,
    MicroBatchResult,
    PipelineInput,
    TrainingPipeline,
    TrainingStage,
    classification_pipeline,
)
from convoy.parallel.slice import Slice
from convoy.planning.schedules import SCHEDULES

CLASSES = 10


def small_layers(norm_type: str = "batch", shortcut_type: str = "auto") -> tuple[LayerPlan, ...]:
    """resnet8: three blocks of two convolutions."""
    config = NetworkConfig(
        model="resnet8",
        norm_type=norm_type,
        norm_num_groups=4,
        shortcut_type=shortcut_type,
    )
    return resnet_layers(config, 3, CLASSES)


def bottleneck_layers(zero: bool = True) -> tuple[LayerPlan, ...]:
    """The stem of resnet50, the first two blocks of its first two groups, and a head.

    Without `zero`, every weight changes in the first update.
    """
    config = NetworkConfig(model="resnet50", zero_init_last_norm=zero)
    full = resnet_layers(config, 3, CLASSES)
    stem = ("conv1", "bn1", "relu", "maxpool")
    blocks = ("layer1/0/", "layer1/1/", "layer2/0/", "layer2/1/")
    chosen = [
        item for item in full if item.name in (*stem, "avgpool") or item.name.startswith(blocks)
    ]
    return (*chosen, LayerPlan("fc", LinearSpec(512, CLASSES)))


def build_slice(layers: Sequence[LayerPlan], seed: int = 0) -> Slice:
    """A slice with all layers."""
    return Slice(layers, build_layers(layers, seed))


def images_and_labels(samples: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A micro-batch of noise."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 3, size, size, generator=rng)
    return images, torch.randint(CLASSES, (samples,), generator=rng)


class SingleStage:
    """A network in one process, for updates with any number of micro-batches."""

    def __init__(self, module: nn.Module, loss: Loss, after_backward: Callable[[], None]) -> None:
        self._parts = module, loss, after_backward

    def run(
        self, micro_batches: Iterable[PipelineInput], scale: float = 1.0
    ) -> list[MicroBatchResult]:
        batches = list(micro_batches)
        return single_stage(*self._parts, len(batches)).run(batches, scale)


def single_stage(
    module: nn.Module, loss: Loss, after_backward: Callable[[], None], micro_batches: int
) -> TrainingPipeline:
    """A pipeline of one stage."""
    schedule = SCHEDULES["sequential"]
    stage = TrainingStage(module, StageChannels(), after_backward, schedule, micro_batches)
    return classification_pipeline([stage], loss)


def short_name(config: NetworkConfig) -> str:
    """The name of a test case."""
    words = (config.model, config.resnet_version, config.stem, config.shortcut_type)
    return "-".join((*words, config.norm_type))
