"""Validation: of a network in training, and of checkpoints on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from convoy.assemble.feeds import hands_of, validation_feed
from convoy.assemble.machine import choose_device, make_repeatable
from convoy.assemble.network import build_network, whole
from convoy.assemble.sources import open_source
from convoy.checkpoint import reading
from convoy.checkpoint.contents import match
from convoy.checkpoint.digest import weights_sha256
from convoy.config.schema import RunConfig
from convoy.data.feed import Hands, ValidationFeed, Wanted
from convoy.engine.evaluator import Answers, Share, evaluate
from convoy.errors import CheckpointError
from convoy.events import Validated
from convoy.launch.cores import threads_each
from convoy.parallel.council import Single
from convoy.parallel.pipeline import LoneInference
from convoy.plan.network import plan_network


class Validator:
    """Measures a network on the validation split, as often as it is asked."""

    def __init__(self, answers: Answers, feed: ValidationFeed, hands: Hands, share: Share) -> None:
        self._answers = answers
        self._feed = feed
        self._hands = hands
        self._share = share

    def __call__(self, update: int, epoch: float) -> Validated:
        """Every sample once; the network is left as it was. All processes must call it."""
        began = monotonic()
        score = evaluate(self._answers, self._feed, self._hands, self._share, update)
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
    make_repeatable(threads_each(config.device.threads, 1))
    plan = plan_network(config)
    network = build_network(plan, [whole(plan)], config.data.seed, device)
    source = open_source(config.data, plan, "validation")
    feed = validation_feed(config, source, device, Wanted())
    answers = LoneInference(network.slice)
    validate = Validator(answers, feed, hands_of(config), Share(0, 1, Single()))
    for path in paths:
        try:
            contents = reading.load(path)
            match(contents.model, network.slice.named_tensors())
        except CheckpointError as error:
            yield error
            continue
        network.load(contents.model)
        validated = validate(contents.update, _epoch(contents.state.get("epoch")))
        yield CheckpointScore(path, weights_sha256(contents.model), validated)


def _epoch(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
