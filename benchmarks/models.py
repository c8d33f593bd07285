"""Each family against plain torch: training, and answers by each backend.

    python benchmarks/models.py [training|inference] [--model resnet50 …] [--pairs 12] [--threads 2]
    python benchmarks/models.py --clock processor --threads 1     on a machine that others use

The plain networks (`plain_networks.py`) get our weights, and their answers are compared with ours
before anything is timed. All candidates take turns in one process: A, B, C, A, B, C, …; a figure is
the median of the ratios of neighbors, with its 95 % interval. Default layout is what users of timm
and torchvision get unless they ask; channels_last is what they get if they do.

Training: whole updates, ours with feed, gradient tree, meter and events, theirs forward, backward
and torch's SGD. Inference: one batch, as `convoy validate` passes it, norms folded.
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
from assembled import CPU, alone, parts_of, resident, updates_of
from interleaved import options_of, ratio_with_interval
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
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "processor": process_time}
WARM_UP = 2
CLOSE = 1e-4  # of the largest answer
# Pixels and batch for training: about a second an update on two cores.
TRAINING = {
    "resnet50": (128, 16),
    "resnext50": (128, 16),
    "efficientnet-b0": (128, 32),
    "mobilenet": (128, 32),
    "mobilenet-v3-large": (128, 32),
    "squeezenet": (128, 32),
}
ANSWERING = ("resnet50", "efficientnet-b0")
SAMPLES = 16  # a batch of answers
SMALL = {
    "model": ["efficientnet-b0", "squeezenet"],
    "backend": ["torch"],  # the others take half a minute to begin
    "image": 64,
    "batch": 2,
    "pairs": 1,
    "threads": 1,
}
LAYOUTS = {"channels_last": torch.channels_last, "default": torch.contiguous_format}


def config_of(model: str, image: int, batch: int, updates: int) -> RunConfig:
    """The usual configuration of a model, on synthetic data."""
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
    """A hand-written loop: nothing but what PyTorch's tutorial has."""

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
    """The plain network with our weights; refuses to compare what is not the same network."""
    made = PLAIN[model]()
    ours = list(network.slice.parameters())
    with torch.no_grad():
        for theirs, weight in zip(made.parameters(), ours, strict=True):
            assert theirs.shape == weight.shape, model
            theirs.copy_(weight)
    return made


def refuse_difference(network: Network, plain: nn.Module, images: Tensor) -> None:
    """In use, where nothing is left to chance."""
    with torch.inference_mode():
        (ours,), theirs = network.slice.eval()(images), plain.eval()(images)
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert difference < CLOSE, f"not the same network: {difference}"
    network.slice.train()
    plain.train()


def compare_training(model: str, options: Namespace, clock: Clock) -> None:
    """Images a second of whole updates, ours against theirs in both layouts."""
    image, batch = (options.image or TRAINING[model][0], options.batch or TRAINING[model][1])
    config = config_of(model, image, batch, options.pairs + WARM_UP)
    device = replace(config.device, threads=options.threads)
    compiler = replace(config.compiler, compile=options.compile)
    with alone(plan_run(replace(config, device=device, compiler=compiler))) as context:
        parts = parts_of(context)
        seconds = trained(parts, plain_trainings(model, parts), clock)
    name = f"{model}, {image} px, batch {batch}" + (", --compile" if options.compile else "")
    tell(name, batch, seconds, "ours", LAYOUTS)


def plain_trainings(model: str, parts: TrainingParts) -> dict[str, PlainTraining]:
    """The same network in plain torch, with the same weights and the same batch."""
    images, labels = resident(parts)
    found = {}
    for layout in LAYOUTS:
        network = plain_like(model, parts.network)
        refuse_difference(parts.network, network, images)
        found[layout] = PlainTraining(network, images, labels, layout)
    return found


def trained(
    parts: TrainingParts, plain: dict[str, PlainTraining], clock: Clock
) -> dict[str, list[float]]:
    """Seconds of each update: ours, then one of each plain loop, and so on."""
    seconds: dict[str, list[float]] = {"ours": [], **{layout: [] for layout in plain}}
    began = clock()
    for _ in updates_of(parts):
        seconds["ours"].append(clock() - began)
        for layout, bare in plain.items():
            seconds[layout].append(timed(bare, clock))
        began = clock()
    return seconds


def compare_inference(model: str, options: Namespace, clock: Clock) -> None:
    """Images a second of answers."""
    image, batch, backends = options.image or 224, options.batch or SAMPLES, options.backend
    plan = plan_run(config_of(model, image, batch, 1)).network
    network = build_network(plan, 0, CPU)
    images = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(0))
    last = images.contiguous(memory_format=torch.channels_last)
    plain = plain_like(model, network)
    refuse_difference(network, plain, images)
    plain.eval()
    candidates: dict[str, Callable[[], Tensor]] = {"default": partial(plain, images)}
    for backend in backends:
        candidates[backend] = partial(answer, InferenceNetwork(plan, network, backend), last)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.inference_mode():
        expected = plain(images)
        for name, candidate in candidates.items():
            difference = (candidate() - expected).abs().max() / expected.abs().max()
            assert difference < CLOSE, f"{name} answers otherwise: {difference}"
        for _ in range(options.pairs + WARM_UP):
            for name, candidate in candidates.items():
                seconds[name].append(timed(candidate, clock))
    for backend in backends:
        tell(f"{model}, {image} px, batch {batch}", batch, seconds, backend, ["default"])


def answer(answerer: InferenceNetwork, images: Tensor) -> Tensor:
    (logits,) = answerer.run([images])
    assert logits is not None
    return logits


def timed(work: Callable[[], object], clock: Clock) -> float:
    began = clock()
    work()
    return clock() - began


def tell(
    what: str, batch: int, seconds: dict[str, list[float]], ours: str, others: Sequence[str]
) -> None:
    """How many times as fast as each of the others."""
    kept = {name: one[WARM_UP:] for name, one in seconds.items()}
    speed = batch / median(kept[ours])
    ratios = []
    for other in others:
        middle, low, high = ratio_with_interval(kept[other], kept[ours])
        ratios.append(f"{middle:.2f} [{low:.2f}, {high:.2f}] × plain {other}")
    print(f"{what}: {ours} {speed:.1f} images/s, {', '.join(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["training", "inference"])
    parser.add_argument("--model", nargs="+", default=[*TRAINING], choices=[*TRAINING])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--compile", action="store_true", help="training compiled, too")
    parser.add_argument("--backend", nargs="+", default=["torch", "compiled", "onnxruntime"])
    parser.add_argument("--image", type=int, help="pixels, where each model has its own")
    parser.add_argument("--batch", type=int, help="images, where each model has its own")
    own = options_of(parser, SMALL)
    make_deterministic(own.threads)
    clock = CLOCKS[own.clock]
    for model in [one for one in ANSWERING if one in own.model and "inference" in own.what]:
        compare_inference(model, own, clock)
    # As `convoy` does. It cannot be undone, and plain torch gains by it too: whoever only answers
    # is measured before, with the memory that plain torch's users have.
    keep_freed_memory()
    for model in own.model if "training" in own.what else []:
        compare_training(model, own, clock)


if __name__ == "__main__":
    main()
