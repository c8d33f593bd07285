"""The training feed of a run without the run: to be measured, or looked at."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from convoy.config.schema import RunConfig
from convoy.data.feeds import ledger_of, loader_options, training_feed
from convoy.data.loader import LoaderOptions, MicroBatchIndex, NeededInputs, TrainingFeed
from convoy.data.source import Source, View
from convoy.data.sources.open import open_source
from convoy.errors import ConfigError
from convoy.models.network import plan_training_network
from convoy.plan.plan import RunPlan, plan_run, used_samples
from convoy.run.process import choose_device, make_repeatable


@dataclass(frozen=True)
class OpenFeed:
    """A feed, who prepares it, and what it is made of."""

    plan: RunPlan
    source: Source
    device: torch.device
    feed: TrainingFeed
    options: LoaderOptions

    @property
    def view(self) -> View:
        """How training sees the samples; prepared right here, whoever does it in training."""
        data = self.plan.config.data
        here = replace(data, dataloader_kind="threads")
        return self.source.training_view(here, self.plan.network.image_size, ledger_of(data))

    @property
    def elements_per_epoch(self) -> int:
        """Micro-batches."""
        return self.plan.batch.micro_batches * self.feed.order.updates_per_epoch

    def indices(self, first: int, count: int) -> Iterator[MicroBatchIndex]:
        """So many micro-batches from that one on, as one process after the other takes them."""
        each = self.plan.batch.micro_batches
        return (MicroBatchIndex(*divmod(number, each)) for number in range(first, first + count))


def open_feed(config: RunConfig) -> OpenFeed:
    """With its own source, on the asked device."""
    if config.data.data == "synthetic":
        raise ConfigError(
            "--data synthetic never leaves the device: there is nothing to feed; "
            "--data generated is made on the host"
        )
    device = choose_device(config.device)
    make_repeatable(config.device.threads)
    return feed_of(config, open_source(config.data, plan_training_network(config), "train"), device)


def feed_of(config: RunConfig, source: Source, device: torch.device) -> OpenFeed:
    """The same out of a source that is open already."""
    plan = plan_run(config, used_samples(config, len(source)))
    feed = training_feed(plan, source, device, NeededInputs(), ledger_of(config.data))
    assert isinstance(feed, TrainingFeed)
    return OpenFeed(plan, source, device, feed, loader_options(config))
