"""Evaluation counts every sample once and changes nothing."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.small_run import CPU, Shuffled, small_network

from convoy.data.loader import DeviceTransfer, LoaderOptions, ValidationFeed
from convoy.data.source import Ids, Labels, Pixels
from convoy.data.sources.pixel_source import PixelView
from convoy.engine.metrics import Score, ValidationShare, evaluate
from convoy.errors import DataError
from convoy.layers.norms import BatchNorm
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.slice import Slice

SAMPLES = 23


def feed_of(source: Shuffled, batch_size: int) -> ValidationFeed:
    transfer = DeviceTransfer(source.normalization, "host", CPU)
    return ValidationFeed(PixelView(source), batch_size, transfer)


SINGLE_REPLICA = ValidationShare(0, 1, ControlGroup())


def score_of(network: Slice, feed: ValidationFeed, options: LoaderOptions | None = None) -> Score:
    return evaluate(
        InferencePipeline([network]), feed, options or LoaderOptions(0, 1), SINGLE_REPLICA, update=7
    )


def reference_score(network: Slice, source: Shuffled) -> Score:
    """The score of one image at a time, with the rank of each label computed here."""
    network.eval()
    ranks, losses = [], []
    for batch in feed_of(source, 1).batches(range(SAMPLES), LoaderOptions(0, 1)):
        logits = network(batch.images)[0][0].double().detach()
        label = int(batch.labels)
        ranks.append(int((logits > logits[label]).sum()))
        losses.append(float(F.cross_entropy(logits[None], batch.labels)))
    top5 = sum(rank < 5 for rank in ranks) / len(ranks)
    return Score(len(ranks), ranks.count(0) / len(ranks), top5, sum(losses) / len(losses))


def trained_network(classes: int = 7) -> Slice:
    """A network with running statistics other than the initial ones."""
    network = small_network(classes=classes)
    rng = torch.Generator().manual_seed(1)
    for norm in norms_of(network):
        norm.running_mean.normal_(0, 0.1, generator=rng)
        norm.running_var.uniform_(0.5, 2, generator=rng)
    return network


def norms_of(network: Slice) -> list[BatchNorm]:
    return [module for module in network.modules() if isinstance(module, BatchNorm)]


@pytest.mark.parametrize("batch_size", [1, 4, SAMPLES - 1, SAMPLES, SAMPLES + 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_counts_once_with_any_batch_size(batch_size: int, workers: int) -> None:
    network, source = trained_network(), Shuffled(SAMPLES)
    expected = reference_score(network, source)
    score = score_of(network, feed_of(source, batch_size), LoaderOptions(workers, 2))

    assert (score.samples, score.top1, score.top5) == (SAMPLES, expected.top1, expected.top5)
    assert score.loss == pytest.approx(expected.loss, rel=1e-5)
    assert 0 < score.top1 < score.top5 < 1


@pytest.mark.parametrize("classes", [2, 4, 5])
def test_with_at_most_five_classes_top5_is_always_correct(classes: int) -> None:
    network, source = trained_network(classes), Shuffled(SAMPLES, classes)
    score = score_of(network, feed_of(source, 6))

    assert score.top5 == 1.0
    assert score.top1 == reference_score(network, source).top1


@pytest.mark.parametrize("classes", [6, 12])
def test_top5_counts_the_fifth_prediction_but_not_the_sixth(classes: int) -> None:
    network, source = small_network(classes=classes), Shuffled(SAMPLES, classes)
    head = network.named_weights()
    head["head.weight"].data.zero_()
    head["head.bias"].data.copy_(-torch.arange(classes))  # class 0 has the largest logit
    labels = source.labels(np.arange(SAMPLES))
    score = score_of(network, feed_of(source, 6))

    assert score.top1 == (labels == 0).mean()
    assert score.top5 == (labels < 5).mean()


@pytest.mark.parametrize("training", [True, False])
def test_inference_restores_the_training_mode(training: bool) -> None:
    network = trained_network().train(training)
    before = {name: item.detach().clone() for name, item in network.named_tensors().items()}
    score_of(network, feed_of(Shuffled(SAMPLES), 6))

    assert all(torch.equal(item, before[name]) for name, item in network.named_tensors().items())
    assert all(module.training == training for module in network.modules())
    assert all(weight.grad is None for weight in network.parameters())
    assert all(norm.pending_statistics == [] for norm in norms_of(network))


def test_training_continues_after_an_evaluation() -> None:
    network, source = trained_network().train(), Shuffled(SAMPLES)
    score_of(network, feed_of(source, 6))
    batch = next(feed_of(source, 6).batches([0], LoaderOptions(0, 1)))
    F.cross_entropy(network(batch.images)[0], batch.labels).backward()

    assert all(weight.grad is not None for weight in network.parameters())


def test_a_failing_network_leaves_no_threads() -> None:
    network = small_network()
    network.named_weights()["head.weight"].data = torch.zeros(7, 9)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        score_of(network, feed_of(Shuffled(SAMPLES), 2), LoaderOptions(2, 3))

    assert caught.tb is not None  # keeps the frames alive
    assert [item.name for item in threading.enumerate() if item.name.startswith("infeed")] == []


class SequentialGroup(ControlGroup):
    """Processes that run one after another; each one gathers the tensors of the earlier ones."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []

    def all_gather_tensor(
        self, point: SyncPoint, update: int, tensor: torch.Tensor
    ) -> list[torch.Tensor]:
        assert (point, update) == (SyncPoint.VALIDATE, 7)
        self.parts.append(tensor)
        return self.parts


@pytest.mark.parametrize("batch_size", [1, 4, 5, SAMPLES])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_replicas_share_the_batches_and_have_the_same_score(batch_size: int, replicas: int) -> None:
    network, source, control = trained_network(), Shuffled(SAMPLES), SequentialGroup()
    expected = score_of(network, feed_of(source, batch_size))
    scores = [
        evaluate(
            InferencePipeline([network]),
            feed_of(source, batch_size),
            LoaderOptions(0, 1),
            ValidationShare(replica, replicas, control),
            update=7,
        )
        for replica in range(replicas)
    ]

    assert scores[-1] == expected


def test_an_incomplete_last_batch_counts_its_samples() -> None:
    source = Shuffled(SAMPLES)
    last = list(feed_of(source, 6).batches(range(4), LoaderOptions(0, 1)))[-1]

    assert (len(last.images), last.samples) == (6, 5)
    assert torch.equal(last.images[5], last.images[4])


@pytest.mark.parametrize("batch_size", [1, 6, SAMPLES])
def test_every_batch_has_a_duration(batch_size: int) -> None:
    feed = feed_of(Shuffled(SAMPLES), batch_size)
    seconds = score_of(trained_network(), feed).batch_seconds

    assert len(seconds) == feed.num_batches
    assert all(second > 0 for second in seconds)


class PartlyReadable(PixelView):
    """A source that cannot read every fifth image and returns another one instead."""

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> tuple[int, ...]:
        super().__call__(np.where(ids % 5 == 0, 1, ids), epoch, out)
        return tuple(int(index) for index in np.flatnonzero(ids % 5 == 0))


@pytest.mark.parametrize("batch_size", [3, 4, 50])
def test_unreadable_samples_do_not_count(batch_size: int) -> None:
    network, source = trained_network(), Shuffled(SAMPLES)
    readable = [number for number in range(SAMPLES) if number % 5]
    transfer = DeviceTransfer(source.normalization, "host", CPU)
    feed = ValidationFeed(PartlyReadable(source), batch_size, transfer)
    score = score_of(network, feed)
    single_scores = [
        score_of(network, ValidationFeed(one_sample(source, number), 1, transfer))
        for number in readable
    ]

    assert score.samples == len(readable) == 18
    assert score.top1 == pytest.approx(np.mean([item.top1 for item in single_scores]))
    assert score.loss == pytest.approx(np.mean([item.loss for item in single_scores]), rel=1e-5)


def one_sample(source: Shuffled, number: int) -> PixelView:
    class SingleSample(Shuffled):
        def pixels(self, ids: Ids) -> Pixels:
            return super().pixels(ids + number)

        def labels(self, ids: Ids) -> Labels:
            return super().labels(ids + number)

        def __len__(self) -> int:
            return 1

    return PixelView(SingleSample(len(source)))


def test_no_readable_sample_is_an_error() -> None:
    class Unreadable(PixelView):
        def __call__(self, ids: Ids, epoch: int, out: Pixels) -> tuple[int, ...]:
            del epoch
            out[:] = 0
            return tuple(range(len(ids)))

    source = Shuffled(SAMPLES)
    feed = ValidationFeed(Unreadable(source), 4, feed_of(source, 4).transfer)
    with pytest.raises(DataError, match="no sample of the validation split"):
        score_of(trained_network(), feed)
