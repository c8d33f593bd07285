#!/usr/bin/env python3
"""Plot loss and accuracy of a run over epochs, for training and validation.

tools/plot_run.py RUN PICTURE.png       requires the extra `plot`
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def read_records(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draw(run: Path, picture: Path) -> None:
    """Two panels next to each other: loss and accuracy."""
    training = read_records(run / "metrics.jsonl")
    validation = read_records(run / "validation.jsonl")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot(
            [record["epoch"] for record in training],
            [record[name] for record in training],
            label="training",
        )
        axes.set(xlabel="epoch", ylabel=name)
        axes.grid(alpha=0.3)
    epochs = [record["epoch"] for record in validation]
    left.plot(epochs, [record["loss"] for record in validation], "o-", label="validation")
    right.plot(epochs, [record["top1"] for record in validation], "o-", label="validation")
    left.legend()
    right.legend()
    figure.savefig(picture, dpi=90)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
