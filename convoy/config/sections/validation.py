"""When accuracy is measured, and how."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import free_option


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """When accuracy is measured."""

    validation_mode: str = free_option(
        "after", "During training, only after it, or never.", choices=("none", "during", "after")
    )
    validation_frequency: int = free_option(
        1,
        "Epochs between validations in mode during.",
        at_least=1,
        only_with={"validation_mode": ("during",)},
    )
    valid_batch_size: int = free_option(
        256, "Samples in one validation pass.", at_least=1, idle=inactive.no_validation
    )
    random_weights: bool = free_option(
        False,
        "Measure a fresh network; `convoy validate` then needs no run.",
        idle=inactive.only_for_validate,
    )
    repeat: int = free_option(
        1,
        "Times `convoy validate` measures the same weights.",
        at_least=1,
        idle=inactive.only_for_validate,
    )
    latency: bool = free_option(
        False,
        "Tell how long `convoy validate` takes for a batch: mean and 99th percentile.",
        idle=inactive.only_for_validate,
    )
    backend: str = free_option(
        "torch",
        "What computes the answers of `convoy validate`: torch, torch.compile, or ONNX Runtime "
        "(an extra).",
        choices=("torch", "compiled", "onnxruntime"),
        idle=inactive.only_for_validate,
    )
    num_inference_thread: int = free_option(
        1,
        "Threads of `convoy validate` that ask for answers side by side.",
        at_least=1,
        at_most=512,
        ready=(1,),
    )
