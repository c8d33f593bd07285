#!/usr/bin/env python3
"""Draws the curves of a run: loss and accuracy over epochs, training and validation.

tools/plot_run.py RUN PICTURE.png       needs the extra `plot`
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def read_lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draw(run: Path, picture: Path) -> None:
    """Two panels side by side, one legend each."""
    training = read_lines(run / "metrics.jsonl")
    validation = read_lines(run / "validation.jsonl")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot(
            [one["epoch"] for one in training], [one[name] for one in training], label="training"
        )
        axes.set(xlabel="epoch", ylabel=name)
        axes.grid(alpha=0.3)
    epochs = [one["epoch"] for one in validation]
    left.plot(epochs, [one["loss"] for one in validation], "o-", label="validation")
    right.plot(epochs, [one["top1"] for one in validation], "o-", label="validation")
    left.legend()
    right.legend()
    figure.savefig(picture, dpi=90)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
