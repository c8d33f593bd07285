"""convoy data bench"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from convoy.cli.arguments import Line, add_config, read_line
from convoy.cli.crew import changed, settle
from convoy.cli.found_data import with_found_data
from convoy.cli.saying import say
from convoy.config.availability import refuse_unready, refuse_unready_data
from convoy.config.command_line import Parser
from convoy.config.problems import Problem
from convoy.config.resolve import Resolved, resolve
from convoy.errors import ExitCode
from convoy.plan.layouts import Layout
from convoy.report.diagnosis import Diagnosis, diagnosis_as_json, diagnosis_lines
from convoy.report.feed_speed import EpochSpeed, mean_line, speed_as_json, speed_line
from convoy.report.voice import tell_on_stderr

SAYS = """How fast the images of a run come when nothing waits for them: read, augmented, normalized
and put together as in training. An element is one micro-batch, copied as if to a device. --epochs
and --elements say how many; 2 epochs of 512 elements, or of all the data, if nothing does.
With --doctor: what limits a training, and which settings would help by how much, all measured."""

_US = "convoy data bench"
_OF_THE_FEED = ("dataloader_worker", "enable_recompute", "offload_optimizer")
_FEW = 64  # samples: a model that sums up more before it changes would only take longer


def main(words: list[str]) -> int:
    """The figures of each epoch, as soon as they are there; then what the doctor says."""
    line = read_line("data bench", words, SAYS, _add_own)
    asked = line.asked()
    resolved = resolve(replace(asked, problems=[*asked.problems, *_misfits(line)]))
    trains = line.own.doctor and line.own.model_rate is None
    (refuse_unready if trains else refuse_unready_data)(resolved)
    resolved = with_found_data(resolved).resolved
    from convoy.assemble.data_bench import BenchWish, bench_feed
    from convoy.assemble.open_feed import open_feed

    wish = BenchWish(_epochs(line), line.own.elements, line.own.copy)
    epochs: list[EpochSpeed] = []
    for epoch in bench_feed(open_feed(_alone(resolved).config), wish):
        epochs.append(epoch)
        say([] if line.own.json else [speed_line(len(epochs), epoch)])
    told: dict[str, Any] = {"epochs": [speed_as_json(one) for one in epochs]}
    say([] if line.own.json else [mean_line(epochs)])
    if line.own.doctor:
        found = _examined(resolved, line.own.model_rate)
        told["doctor"] = diagnosis_as_json(found)
        say([] if line.own.json else ["", *diagnosis_lines(found)])
    if line.own.json:
        print(json.dumps(told, indent=1))
    return ExitCode.DONE


def _alone(resolved: Resolved, most: int | None = None) -> Resolved:
    """The same micro-batches, all of them for one process; at most so many samples an update."""
    batch = resolved.config.batch
    micro_batches = batch.gradient_accumulation * batch.replicas
    if most is not None:
        micro_batches = min(micro_batches, max(1, most // batch.micro_batch_size))
    values = Layout().values(micro_batches) | {"instances": 1, "hosts": 1, "bn_span": 1}
    kept = {name: one for name, one in values.items() if name not in _OF_THE_FEED}
    return settle(changed(resolved, kept, _US), 1)


def _examined(resolved: Resolved, model_rate: float | None) -> Diagnosis:
    from convoy.assemble.doctor import diagnose
    from convoy.assemble.open_feed import open_feed

    opened = open_feed(_alone(resolved, _FEW).config)
    return diagnose(opened, model_rate, tell_on_stderr)


def _epochs(line: Line) -> int:
    """Those of a named configuration are the length of its training, which nobody asks for."""
    return int(line.given["epoch"].value) if "epoch" in line.given else 2


def _misfits(line: Line) -> Iterator[Problem]:
    own, rate = line.own, line.own.model_rate
    if "epoch" in line.given and line.given["epoch"].value % 1:
        yield Problem("--epochs", f"must be a whole number here, got {line.given['epoch'].value:g}")
    if own.elements is not None and own.elements < 1:
        yield Problem("--elements", f"must be at least 1, got {own.elements}")
    if rate is not None and not (0 < rate < math.inf):
        yield Problem("--model-rate", f"must be above 0 and finite, got {rate:g}")
    if rate is not None and not own.doctor:
        yield Problem("--model-rate", "is for the doctor; add --doctor")


def _add_own(parser: Parser) -> None:
    parser.add_argument("--elements", type=int, metavar="N", help="micro-batches of an epoch [512]")
    parser.add_argument(
        "--no-copy", dest="copy", action="store_false", help="leave each element where it is"
    )
    parser.add_argument("--doctor", action="store_true", help="find what limits, and what helps")
    parser.add_argument(
        "--model-rate",
        type=float,
        metavar="X",
        help="images/s that the model takes; measured by a short training if unset",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_config(parser)
