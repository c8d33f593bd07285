"""`convoy.repeat` against a plain Python loop that reads the loss with `.item()` after each step.

    python benchmarks/repeat.py [--pairs 30] [--threads 1] [--without-compile]

Two steps: a tiny one (a vector of 16 numbers), where the loop itself matters, and a training step
of a small convolutional network. Both loops run the same step on the same element, in turn, a
number of iterations at a time. `repeat` carries the sum of the losses, which is read once at the
end; the plain loop reads the loss in each step. With `compile=True`, the step of the plain loop is
compiled too.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from interleaved import parse_options, ratio_with_interval
from torch import Tensor, nn

import convoy

Step = Callable[..., Tensor]
WARM_UP = 2  # pairs

ITERATIONS = {"tiny step": 500, "training step": 10}


def tiny_step(smoke: bool) -> tuple[Step, tuple[Tensor, ...]]:
    """A few operations on a vector."""
    del smoke
    weight = torch.full((16,), 0.5)

    def step(images: Tensor) -> Tensor:
        loss = (images * weight).square().mean()
        weight.mul_(0.999)
        return loss

    return step, (torch.ones(16),)


def training_step(smoke: bool) -> tuple[Step, tuple[Tensor, ...]]:
    """Forward, backward and update of a network of four convolutions."""
    torch.manual_seed(0)
    width, samples, size = (4, 2, 8) if smoke else (32, 32, 32)
    convs = [nn.Conv2d(3, width, 3, padding=1)]
    convs += [nn.Conv2d(width, width, 3, stride=2, padding=1) for _ in range(3)]
    layers = [layer for conv in convs for layer in (conv, nn.ReLU())]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (size // 8) ** 2, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(samples, 3, size, size), torch.randint(10, (samples,)))


STEPS = {"tiny step": tiny_step, "training step": training_step}


@dataclass(frozen=True)
class Case:
    """What is compared."""

    step: str
    infeed: bool  # or always the same element
    compile: bool

    def __str__(self) -> str:
        loop = "compile=True" if self.compile else "eager"
        return f"{self.step}, {'with' if self.infeed else 'without'} infeed, {loop}"


class Elements:
    """The same element forever."""

    def __init__(self, element: tuple[Tensor, ...]) -> None:
        self.element = element

    def __iter__(self) -> "Elements":
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        return self.element


class RepeatLoop:
    """`repeat` with the sum of the losses as the carried value, which is read at the end."""

    def __init__(self, step: Step, element: tuple[Tensor, ...], case: Case) -> None:
        self.infeed = convoy.Infeed(Elements(element), prefetch_depth=8) if case.infeed else None
        self.compile = case.compile

        def body(total: Tensor, *arguments: Tensor) -> Tensor:
            return total + step(*(arguments or element))

        self.body = body

    def run(self, iterations: int) -> float:
        start = perf_counter()
        total = torch.zeros(())
        convoy.repeat(iterations, self.body, [total], self.infeed, compile=self.compile).item()
        return perf_counter() - start


class PlainLoop:
    def __init__(self, step: Step, element: tuple[Tensor, ...]) -> None:
        self.step, self.elements = step, Elements(element)

    def run(self, iterations: int) -> float:
        start = perf_counter()
        losses = []
        for _ in range(iterations):
            losses.append(self.step(*next(self.elements)).item())
        return perf_counter() - start


def compare(case: Case, options: argparse.Namespace) -> str:
    """Run the loops in turn; each has its own weights."""
    (ours, element), (theirs, _) = (STEPS[case.step](options.smoke) for _ in range(2))
    loop = RepeatLoop(ours, element, case)
    plain = PlainLoop(torch.compile(theirs) if case.compile else theirs, element)
    iterations = 2 if options.smoke else ITERATIONS[case.step]
    times = [(loop.run(iterations), plain.run(iterations)) for _ in range(options.pairs + WARM_UP)][
        WARM_UP:
    ]
    ratio, low, high = ratio_with_interval([a for a, _ in times], [b for _, b in times])
    difference = median(a - b for a, b in times) / iterations
    step = median(b for _, b in times) / iterations
    return (
        f"{case!s:42} repeat / plain = {ratio:.3f} [{low:.3f}, {high:.3f}], "
        f"{1e6 * difference:+.1f} µs per step of {1e6 * step:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-compile", action="store_true")
    options = parse_options(parser, {"pairs": 1, "without_compile": True})
    torch.set_num_threads(options.threads)
    for compiled in (False,) if options.without_compile else (False, True):
        for name in STEPS:
            for infeed in (False, True):
                print(compare(Case(name, infeed, compiled), options), flush=True)


if __name__ == "__main__":
    main()
