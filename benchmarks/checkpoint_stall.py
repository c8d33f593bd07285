"""Training time lost to saving a checkpoint in the background.

    python benchmarks/checkpoint_stall.py [--saves 12] [--model resnet50] [--threads 2]

Windows without a save alternate with windows that start with a save and end when its checkpoint is
on disk and verified. The loss of a save is the time of its window minus the time of as many updates
in the windows before and after it. It is printed as a share of a minute, for one save per minute.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from assembled import build_parts, make_plan, make_update, single_process
from interleaved import parse_options, ratio_with_interval

from convoy.checkpoint.background import BackgroundCheckpointWriter
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.machine import keep_freed_memory
from convoy.run.process import ProcessContext
from convoy.run.state import TrainingState


class Training:
    """Updates of a network on one resident batch, and the state to save."""

    def __init__(self, context: ProcessContext) -> None:
        parts = build_parts(context)
        self._update = make_update(parts)
        self._state = TrainingState(parts)

    def update(self) -> float:
        start = perf_counter()
        self._update()
        return perf_counter() - start

    def contents(self, update: int) -> CheckpointContents:
        contents = self._state.capture(update, {})
        assert contents is not None, "there is one process"
        return contents


class Windows:
    """Saves one checkpoint after the other while training continues."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.saver = BackgroundCheckpointWriter(
            CheckpointStore(folder), 2, lambda update, *_: self.saved.append(update)
        )
        self.saved: list[int] = []

    def seconds(self, number: int) -> tuple[float, int]:
        """Seconds and updates from the start of a save until its checkpoint is complete."""
        start, updates = perf_counter(), 0
        self.saver.save(self.training.contents(number))
        while number not in self.saved:
            self.training.update()
            updates += 1
            self.saver.poll()
        return perf_counter() - start, updates


def lost_seconds(training: Training, saves: int, quiet: int) -> list[float]:
    """Training time lost to each save; `quiet` updates before and after it are the reference."""
    lost: list[float] = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        windows = Windows(training, Path(folder))
        before = median(training.update() for _ in range(quiet))
        for number in range(saves):
            seconds, updates = windows.seconds(number)
            after = median(training.update() for _ in range(quiet))
            lost.append(seconds - updates * (before + after) / 2)
            before = after
        windows.saver.close()
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--quiet", type=int, default=8, help="updates between two saves")
    parser.add_argument("--threads", type=int, default=2)
    small = {"saves": 1, "model": "resnet8", "size": 16, "batch": 2, "quiet": 1, "threads": 1}
    options = parse_options(parser, small)
    keep_freed_memory()  # as `convoy train` does
    plan = make_plan(
        {
            "model": options.model,
            "data": "synthetic",
            "micro_batch_size": options.batch,
            "image_size": options.size,
            "threads": options.threads,
        }
    )
    with single_process(plan) as context:
        training = Training(context)
        for _ in range(3):
            training.update()
        lost = lost_seconds(training, options.saves, options.quiet)
    contents = training.contents(0)
    size = sum(
        tensor.nbytes
        for tensors in (contents.model, contents.optimizer)
        for tensor in tensors.values()
    )
    middle, low, high = ratio_with_interval(lost, [60.0] * len(lost))
    print(
        f"{options.model}, {size / 1e6:.0f} MB: one save costs {1000 * median(lost):.0f} ms of "
        f"training; at one save per minute {100 * middle:.2f} % "
        f"[{100 * low:.2f}, {100 * high:.2f}] over {options.saves} saves"
    )


if __name__ == "__main__":
    main()
