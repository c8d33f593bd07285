"""What fewer bits cost and what they lose.

    python benchmarks/numerics.py cost        time of a pass in emulated 16 bits, beside 32 bits
    python benchmarks/numerics.py accuracy    the table of docs/numerics.md, five seeds each

Costs are taken in turns, pair by pair. Accuracies come from real runs of `convoy train` on the
built-in shapes, two at a time with one thread each.
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
from assembled import alone, parts_of
from interleaved import options_of, ratio_with_interval
from models import config_of
from torch import Tensor

from convoy.cli.main import main as convoy
from convoy.layers.norms import PendingStatistics
from convoy.planning.plan import plan_run
from convoy.run.network import Network

SEEDS = 5
STUDENT = {3: 4.303, 5: 2.776, 10: 2.262}  # 97.5 % of Student's t with so many seeds less one

USUAL = "--image-size 20"  # of the network and the rates that come by themselves
SMALL = "--model resnet8 --samples 4000 --image-size 20 --epoch 5 --warmup-epoch 1"
FINE = f"{SMALL} --optimizer adamw --lr 0.0005 --weight-decay 0.01"
# Gradients of so small a network are not faint by themselves: its loss is made so, 2^-14 of it.
FAINT = f"{SMALL} --loss-scaling 6.103515625e-05"


@dataclass(frozen=True)
class Family:
    """Runs that differ in one thing; the first is what the others are compared with."""

    title: str
    words: str  # that all have
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
        "faint gradients, float16",
        FAINT,
        {
            "32.32": "",
            "16.32": "--precision 16.32",
            "16.32, a ladder up to 128": (
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
            "exponential over them, 0.9": (
                "--weight-avg-strategy exponential --weight-avg-exp-decay 0.9 --weight-avg-n 8"
            ),
            "exponential, at every update, 0.98": "--ema-decay 0.98",
        },
    ),
)


# Of each kind of network and of run the smallest.
SMALLEST = {
    "networks": (("resnet8", 8, 2),),
    "rounds": 1,
    "seeds": 1,
    "only": "averages",
    "runs": 2,
    "more": "--samples 64 --image-size 12 --epoch 1 --warmup-epoch 0",
}


def accuracy(options: argparse.Namespace) -> None:
    """Every run with every seed, then the table."""
    _refuse_impossible()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as two:
        for family in FAMILIES:
            if options.only and options.only not in family.title:
                continue
            chosen = [*family.runs.items()][: options.runs]
            lines = {name: f"{family.words} {words} {options.more}" for name, words in chosen}
            jobs = {
                (name, seed): two.submit(_top1, line, seed, Path(folder))
                for seed in range(options.seeds)
                for name, line in lines.items()
            }
            found = {
                name: [jobs[name, seed].result() for seed in range(options.seeds)] for name in lines
            }
            print(f"\n{family.title}: convoy train {family.words}")
            for row in _rows(found):
                print(row, flush=True)


def _refuse_impossible() -> None:
    """The runs take hours: what cannot be planned is to be known before the first."""
    for line in [f"{one.words} {words}" for one in FAMILIES for words in one.runs.values()]:
        with redirect_stdout(StringIO()):
            assert convoy(["plan", *shlex.split(line)]) == 0, line


def _top1(line: str, seed: int, folder: Path) -> float:
    """In percent; of the average, where the run makes one. A run that breaks down has none."""
    run = folder / f"{abs(hash(line))}-{seed}"
    own = f"--seed {seed} --threads 1 --progress none --output {run}"
    words = [sys.executable, "-m", "convoy", "train", *shlex.split(f"{line} {own}")]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 5:  # the numbers broke down
        return 0.0
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    average = summary["averaged"] or summary["live_average"]
    return 100 * float(average["top1"] if average else summary["top1"])


def _rows(found: dict[str, list[float]]) -> Iterator[str]:
    """Means with their interval, and the same of the differences seed by seed."""
    base = next(iter(found.values()))
    for name, values in found.items():
        differences = [one - other for one, other in zip(values, base, strict=True)]
        shown = "" if values is base else f"   {_with_interval(differences, '+')}"
        yield f"  {name:34} {_with_interval(values)}{shown}"


def _with_interval(values: list[float], sign: str = "") -> str:
    if len(values) == 1:
        return f"{values[0]:{sign}6.2f}"
    half = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
    return f"{mean(values):{sign}6.2f} ± {half:.2f}"


@dataclass
class Passes:
    """One network, forward and back."""

    network: Network
    images: Tensor
    labels: Tensor

    def seconds(self) -> float:
        began = perf_counter()
        (logits,) = self.network.slice.train()(self.images)
        F.cross_entropy(logits, self.labels).backward()
        seconds = perf_counter() - began
        PendingStatistics(self.network.norms).discard()
        for weight in self.network.slice.parameters():
            weight.grad = None
        return seconds


def _passes(model: str, image: int, batch: int, **numbers: str) -> Passes:
    config = config_of(model, image, batch, 1)
    config = replace(config, precision=replace(config.precision, **numbers))
    config = replace(config, device=replace(config.device, threads=1))
    with alone(plan_run(config)) as context:
        network = parts_of(context).network
    images = torch.randn(batch, 3, image, image).contiguous(memory_format=torch.channels_last)
    return Passes(network, images, torch.arange(batch) % 10)


def cost(options: argparse.Namespace) -> None:
    """16 bits as if against 32, pair by pair."""
    for model, image, batch in options.networks:
        plain = _passes(model, image, batch)
        for half in ("float16", "bfloat16"):
            emulated = _passes(model, image, batch, precision="16.16", half_type=half)
            pairs = [(emulated.seconds(), plain.seconds()) for _ in range(options.rounds + 2)][2:]
            ratio, low, high = ratio_with_interval(*map(list, zip(*pairs, strict=True)))
            print(f"{model} at {image} px, {half}: {ratio:.2f} [{low:.2f}, {high:.2f}] of 32 bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "accuracy"))
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=tuple(STUDENT))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="families whose title holds this")
    usual = (("resnet20", 32, 64), ("resnet50", 128, 8))
    parser.set_defaults(networks=usual, runs=None, more="")
    options = options_of(parser, SMALLEST)
    {"cost": cost, "accuracy": accuracy}[options.what](options)


if __name__ == "__main__":
    main()
