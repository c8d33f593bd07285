"""Speed and accuracy of 16-bit training.

    python benchmarks/numerics.py cost        time of emulated 16-bit passes, relative to 32 bits
    python benchmarks/numerics.py accuracy    the table of docs/numerics.md, five seeds each

Passes in 16 and in 32 bits alternate. Accuracies come from runs of `convoy train` on the built-in
shapes, two at a time with one thread each.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
import torch.nn.functional as F
from assembled import build_parts, single_process
from interleaved import parse_options, ratio_with_interval
from models import config_of
from torch import Tensor

from convoy.cli.main import main as convoy
from convoy.errors import ExitCode
from convoy.layers.norms import PendingStatistics
from convoy.planning.plan import plan_run
from convoy.run.network import Network

SEEDS = 5
STUDENT = {
    3: 4.303,
    5: 2.776,
    10: 2.262,
}  # seeds → 97.5 % quantile of Student's t with seeds − 1 degrees of freedom

USUAL = "--image-size 20"  # default network and learning rate
SMALL = "--model resnet8 --samples 4000 --image-size 20 --epoch 5 --warmup-epoch 1"
FINE = f"{SMALL} --optimizer adamw --lr 0.0005 --weight-decay 0.01"
# The gradients of a small network do not underflow, so the loss is multiplied by 2^-14.
SCALED_DOWN = f"{SMALL} --loss-scaling 6.103515625e-05"


@dataclass(frozen=True)
class Family:
    """Runs that differ in one option; the others are compared with the first."""

    title: str
    words: str  # options of all runs
    runs: dict[str, str]


FAMILIES = (
    Family(
        "an ordinary run",
        USUAL,
        {
            "32.32": "",
            "16.32": "--precision 16.32 --loss-scaling 128",
            "16.16, rounded to nearest": "--precision 16.16 --loss-scaling 128",
            "16.16, stochastic rounding": (
                "--precision 16.16 --loss-scaling 128 --enable-stochastic-rounding"
            ),
        },
    ),
    Family(
        "small updates, bfloat16",
        FINE,
        {
            "32.32": "",
            "16.16, rounded to nearest": "--precision 16.16 --half-type bfloat16",
            "16.16, stochastic rounding": (
                "--precision 16.16 --half-type bfloat16 --enable-stochastic-rounding"
            ),
        },
    ),
    Family(
        "small gradients, float16",
        SCALED_DOWN,
        {
            "32.32": "",
            "16.32": "--precision 16.32",
            "16.32, loss scale increases to 128": (
                "--precision 16.32 --loss-scaling 128 --initial-loss-scaling 6.103515625e-05"
            ),
            "16.32, automatic loss scaling": "--precision 16.32 --auto-loss-scaling",
        },
    ),
    Family(
        "averages",
        f"{SMALL} --ckpts-per-epoch 4",
        {
            "the last weights": "",
            "mean of the last 8 checkpoints": "--weight-avg-strategy mean --weight-avg-n 8",
            "exponential average of them, 0.9": (
                "--weight-avg-strategy exponential --weight-avg-exp-decay 0.9 --weight-avg-n 8"
            ),
            "EMA of every update, 0.98": "--ema-decay 0.98",
        },
    ),
)


# For `--smoke`.
SMALLEST = {
    "networks": (("resnet8", 8, 2),),
    "rounds": 1,
    "seeds": 1,
    "only": "averages",
    "runs": 2,
    "extra": "--samples 64 --image-size 12 --epoch 1 --warmup-epoch 0",
}


def accuracy(options: argparse.Namespace) -> None:
    """Run every family with every seed and print a table of each."""
    _check_plans()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for family in FAMILIES:
            if options.only and options.only not in family.title:
                continue
            selected = [*family.runs.items()][: options.runs]
            lines = {name: f"{family.words} {words} {options.extra}" for name, words in selected}
            jobs = {
                (name, seed): pool.submit(_top1, line, seed, Path(folder))
                for seed in range(options.seeds)
                for name, line in lines.items()
            }
            results = {
                name: [jobs[name, seed].result() for seed in range(options.seeds)] for name in lines
            }
            print(f"\n{family.title}: convoy train {family.words}")
            for row in _rows(results):
                print(row, flush=True)


def _check_plans() -> None:
    """Plan every run first: they take hours, and an invalid option should fail immediately."""
    for line in [f"{family.words} {run}" for family in FAMILIES for run in family.runs.values()]:
        with redirect_stdout(StringIO()):
            assert convoy(["plan", *shlex.split(line)]) == 0, line


def _top1(line: str, seed: int, folder: Path) -> float:
    """Top-1 in percent, of the weight average if there is one; 0 if the run became non-finite."""
    run = folder / f"{abs(hash(line))}-{seed}"
    options = f"{line} --seed {seed} --threads 1 --progress none --output {run}"
    words = [sys.executable, "-m", "convoy", "train", *shlex.split(options)]
    process = subprocess.run(words, capture_output=True, text=True)
    if process.returncode == ExitCode.NUMERIC:
        return 0.0
    assert process.returncode == 0, process.stderr
    summary = json.loads((run / "summary.json").read_text())
    average = summary["averaged"] or summary["live_average"]
    return 100 * float(average["top1"] if average else summary["top1"])


def _rows(results: dict[str, list[float]]) -> Iterator[str]:
    """The mean of each run, and of its differences from the first run, with their intervals."""
    base = next(iter(results.values()))
    for name, values in results.items():
        differences = [value - other for value, other in zip(values, base, strict=True)]
        comparison = "" if values is base else f"   {_with_interval(differences, '+')}"
        yield f"  {name:34} {_with_interval(values)}{comparison}"


def _with_interval(values: list[float], sign: str = "") -> str:
    if len(values) == 1:
        return f"{values[0]:{sign}6.2f}"
    margin = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
    return f"{mean(values):{sign}6.2f} ± {margin:.2f}"


@dataclass
class Passes:
    """Forward and backward passes of a network."""

    network: Network
    images: Tensor
    labels: Tensor

    def seconds(self) -> float:
        start = perf_counter()
        (logits,) = self.network.slice.train()(self.images)
        F.cross_entropy(logits, self.labels).backward()
        seconds = perf_counter() - start
        PendingStatistics(self.network.norms).discard()
        for weight in self.network.slice.parameters():
            weight.grad = None
        return seconds


def _passes(model: str, image: int, batch: int, **numbers: str) -> Passes:
    config = config_of(model, image, batch, 1)
    config = replace(config, precision=replace(config.precision, **numbers))
    config = replace(config, device=replace(config.device, threads=1))
    with single_process(plan_run(config)) as context:
        network = build_parts(context).network
    images = torch.randn(batch, 3, image, image).contiguous(memory_format=torch.channels_last)
    return Passes(network, images, torch.arange(batch) % 10)


def cost(options: argparse.Namespace) -> None:
    """Time of emulated 16-bit passes relative to 32-bit passes."""
    for model, image, batch in options.networks:
        plain = _passes(model, image, batch)
        for dtype in ("float16", "bfloat16"):
            emulated = _passes(model, image, batch, precision="16.16", half_type=dtype)
            pairs = [(emulated.seconds(), plain.seconds()) for _ in range(options.rounds + 2)][2:]
            ratio, low, high = ratio_with_interval(*map(list, zip(*pairs, strict=True)))
            print(f"{model} at {image} px, {dtype}: {ratio:.2f} [{low:.2f}, {high:.2f}] of 32 bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("cost", "accuracy"))
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=tuple(STUDENT))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="families whose title contains this")
    usual = (("resnet20", 32, 64), ("resnet50", 128, 8))
    parser.set_defaults(networks=usual, runs=None, extra="")
    options = parse_options(parser, SMALLEST)
    {"cost": cost, "accuracy": accuracy}[options.mode](options)


if __name__ == "__main__":
    main()
