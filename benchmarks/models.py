"""Each model family against plain torch: training, and inference with each backend.

    python benchmarks/models.py [training|inference] [--model resnet50 …] [--pairs 12] [--threads 2]
    python benchmarks/models.py --clock cpu --threads 1     on a busy machine

The plain networks (`plain_networks.py`) get the weights of convoy, and their outputs are compared
before anything is measured. All candidates alternate in one process; the result is the median of
the ratios of neighboring measurements with its 95 % interval. The default memory layout is what
users of timm and torchvision get without an option; channels_last is what they get with one.

Training: complete updates; those of convoy with data feed, gradient tree, metrics and events, those
of plain torch with forward, backward and SGD. Inference: one batch, as in `convoy validate`, with
folded batch norm.
"""

import argparse
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from assembled import CPU, build_parts, resident_batch, run_updates, single_process
from interleaved import parse_options, ratio_with_interval
from plain_networks import PLAIN
from torch import Tensor, nn

from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, RunConfig, settings_from
from convoy.machine import keep_freed_memory
from convoy.planning.plan import plan_run
from convoy.run.build import TrainingParts
from convoy.run.network import Network, build_network
from convoy.run.process import make_deterministic
from convoy.run.validation import InferenceNetwork

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
WARM_UP = 2
TOLERANCE = 1e-4  # relative to the largest output
# Pixels and batch size for training: about a second per update on two cores.
TRAINING = {
    "resnet50": (128, 16),
    "resnext50": (128, 16),
    "efficientnet-b0": (128, 32),
    "mobilenet": (128, 32),
    "mobilenet-v3-large": (128, 32),
    "squeezenet": (128, 32),
}
INFERENCE = ("resnet50", "efficientnet-b0")
INFERENCE_BATCH = 16
SMALL = {
    "model": ["efficientnet-b0", "squeezenet"],
    "backend": ["torch"],  # the others take half a minute to start
    "image": 64,
    "batch": 2,
    "pairs": 1,
    "threads": 1,
}
LAYOUTS = {"channels_last": torch.channels_last, "default": torch.contiguous_format}


def config_of(model: str, image: int, batch: int, updates: int) -> RunConfig:
    """The default configuration of a model, on synthetic data."""
    values = {
        "model": model,
        "data": "synthetic",
        "image_size": image,
        "micro_batch_size": batch,
        "samples": batch * 100,
        "updates": updates,
        "epoch": None,
        "lr": 0.01,
        "warmup_epoch": 0.0,
    }
    return resolve(RequestedOptions(settings_from("benchmark", values), environment={})).config


class PlainTraining:
    """A training loop with the steps of the PyTorch tutorial and nothing else."""

    def __init__(self, network: nn.Module, images: Tensor, labels: Tensor, layout: str) -> None:
        self.network = network.to(memory_format=LAYOUTS[layout]).train()
        self.images = images.contiguous(memory_format=LAYOUTS[layout])
        self.labels = labels
        weights = self.network.parameters()
        self.optimizer = torch.optim.SGD(weights, 0.01, momentum=0.9, weight_decay=5e-4)
        self.loss = 0.0

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.loss += loss.item()


def plain_like(model: str, network: Network) -> nn.Module:
    """The plain network with the weights of convoy's, which must have the same shapes."""
    plain = PLAIN[model]()
    weights = list(network.slice.parameters())
    with torch.no_grad():
        for plain_weight, weight in zip(plain.parameters(), weights, strict=True):
            assert plain_weight.shape == weight.shape, model
            plain_weight.copy_(weight)
    return plain


def check_same_outputs(network: Network, plain: nn.Module, images: Tensor) -> None:
    """Compare the outputs in evaluation mode, without dropout."""
    with torch.inference_mode():
        (outputs,), expected = network.slice.eval()(images), plain.eval()(images)
    difference = ((outputs - expected).abs().max() / expected.abs().max()).item()
    assert difference < TOLERANCE, f"not the same network: {difference}"
    network.slice.train()
    plain.train()


def compare_training(model: str, options: Namespace, clock: Clock) -> None:
    """Images per second of complete updates, against plain torch in both memory layouts."""
    image, batch = (options.image or TRAINING[model][0], options.batch or TRAINING[model][1])
    config = config_of(model, image, batch, options.pairs + WARM_UP)
    device = replace(config.device, threads=options.threads)
    compiler = replace(config.compiler, compile=options.compile)
    with single_process(plan_run(replace(config, device=device, compiler=compiler))) as context:
        parts = build_parts(context)
        seconds = time_updates(parts, plain_trainings(model, parts), clock)
    title = f"{model}, {image} px, batch {batch}" + (", --compile" if options.compile else "")
    print_speed(title, batch, seconds, "convoy", list(LAYOUTS))


def plain_trainings(model: str, parts: TrainingParts) -> dict[str, PlainTraining]:
    """The same network in plain torch, with the same weights and batch, in each layout."""
    images, labels = resident_batch(parts)
    trainings = {}
    for layout in LAYOUTS:
        network = plain_like(model, parts.network)
        check_same_outputs(parts.network, network, images)
        trainings[layout] = PlainTraining(network, images, labels, layout)
    return trainings


def time_updates(
    parts: TrainingParts, plain: dict[str, PlainTraining], clock: Clock
) -> dict[str, list[float]]:
    """Seconds of each update; after each update of convoy follows one of every plain loop."""
    seconds: dict[str, list[float]] = {"convoy": [], **{layout: [] for layout in plain}}
    start = clock()
    for _ in run_updates(parts):
        seconds["convoy"].append(clock() - start)
        for layout, training in plain.items():
            seconds[layout].append(timed(training, clock))
        start = clock()
    return seconds


def compare_inference(model: str, options: Namespace, clock: Clock) -> None:
    """Images per second of inference with each backend, against plain torch."""
    image, batch, backends = options.image or 224, options.batch or INFERENCE_BATCH, options.backend
    plan = plan_run(config_of(model, image, batch, 1)).network
    network = build_network(plan, 0, CPU)
    images = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(0))
    channels_last = images.contiguous(memory_format=torch.channels_last)
    plain = plain_like(model, network)
    check_same_outputs(network, plain, images)
    plain.eval()
    candidates: dict[str, Callable[[], Tensor]] = {"default": partial(plain, images)}
    for backend in backends:
        inference = InferenceNetwork(plan, network, backend)
        candidates[backend] = partial(infer, inference, channels_last)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.inference_mode():
        expected = plain(images)
        for name, candidate in candidates.items():
            difference = (candidate() - expected).abs().max() / expected.abs().max()
            assert difference < TOLERANCE, f"{name} has other outputs: {difference}"
        for _ in range(options.pairs + WARM_UP):
            for name, candidate in candidates.items():
                seconds[name].append(timed(candidate, clock))
    for backend in backends:
        print_speed(f"{model}, {image} px, batch {batch}", batch, seconds, backend, ["default"])


def infer(network: InferenceNetwork, images: Tensor) -> Tensor:
    (logits,) = network.run([images])
    assert logits is not None
    return logits


def timed(work: Callable[[], object], clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


def print_speed(
    title: str, batch: int, seconds: dict[str, list[float]], name: str, plain: Sequence[str]
) -> None:
    """Print images per second, and the speedup over each plain network."""
    measured = {key: values[WARM_UP:] for key, values in seconds.items()}
    speed = batch / median(measured[name])
    ratios = []
    for other in plain:
        ratio, low, high = ratio_with_interval(measured[other], measured[name])
        ratios.append(f"{ratio:.2f} [{low:.2f}, {high:.2f}] × plain {other}")
    print(f"{title}: {name} {speed:.1f} images/s, {', '.join(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modes", nargs="*", default=["training", "inference"])
    parser.add_argument("--model", nargs="+", default=[*TRAINING], choices=[*TRAINING])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--compile", action="store_true", help="compile training")
    parser.add_argument("--backend", nargs="+", default=["torch", "compiled", "onnxruntime"])
    parser.add_argument("--image", type=int, help="pixels; the default depends on the model")
    parser.add_argument("--batch", type=int, help="batch size; the default depends on the model")
    options = parse_options(parser, SMALL)
    make_deterministic(options.threads)
    clock = CLOCKS[options.clock]
    if "inference" in options.modes:
        for model in INFERENCE:
            if model in options.model:
                compare_inference(model, options, clock)
    # As `convoy` does. It speeds up plain torch too and cannot be undone, so inference is measured
    # first, with the allocator settings that users of plain torch have.
    keep_freed_memory()
    if "training" in options.modes:
        for model in options.model:
            compare_training(model, options, clock)


if __name__ == "__main__":
    main()
