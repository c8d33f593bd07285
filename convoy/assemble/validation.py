"""Validation: of a network in training, and of checkpoints on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from convoy.assemble.feeds import hands_of, validation_feed
from convoy.assemble.machine import choose_device, choose_threads, make_repeatable
from convoy.assemble.network import Network, build_network
from convoy.assemble.sources import open_source
from convoy.checkpoint import reading
from convoy.checkpoint.contents import match
from convoy.checkpoint.digest import weights_sha256
from convoy.config.schema import RunConfig
from convoy.data.source import Source
from convoy.engine.evaluator import evaluate
from convoy.errors import CheckpointError
from convoy.events import Validated
from convoy.plan.network import plan_network


class Validator:
    """Measures a network on the validation split, as often as it is asked."""

    def __init__(self, config: RunConfig, source: Source | None, device: torch.device) -> None:
        self._config = config
        self._feed = validation_feed(config, source, device) if source is not None else None

    def __call__(self, network: Network, update: int, epoch: float) -> Validated:
        """Every sample once; the network is left as it was."""
        assert self._feed is not None, "this run was to be without validation"
        began = monotonic()
        score = evaluate(network.slice, self._feed, hands_of(self._config))
        seconds = monotonic() - began
        return Validated(
            update,
            epoch,
            score.top1,
            score.top5,
            score.loss,
            score.samples,
            seconds,
            score.samples / seconds,
        )


@dataclass(frozen=True)
class CheckpointScore:
    """The score of one checkpoint."""

    path: Path
    weights_sha256: str
    validated: Validated


def validate_checkpoints(
    config: RunConfig, paths: list[Path]
) -> Iterator[CheckpointScore | CheckpointError]:
    """Score each checkpoint on the validation split; one that cannot be used hides no other."""
    device = choose_device(config.device)
    make_repeatable(choose_threads(config.device, 1))
    plan = plan_network(config)
    network = build_network(plan, config.data.seed, device)
    validate = Validator(config, open_source(config.data, plan, "validation"), device)
    for path in paths:
        try:
            contents = reading.load(path)
            match(contents.model, network.slice.named_tensors())
        except CheckpointError as error:
            yield error
            continue
        network.load(contents.model)
        validated = validate(network, contents.update, _epoch(contents.state.get("epoch")))
        yield CheckpointScore(path, weights_sha256(contents.model), validated)


def _epoch(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
