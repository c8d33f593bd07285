"""The training feed of a run, opened without training: to benchmark or inspect it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from convoy.config.schema import RunConfig
from convoy.data.feeds import loader_options, make_ledger, make_training_feed
from convoy.data.loader import LoaderOptions, MicroBatchIndex, NeededInputs, TrainingFeed
from convoy.data.source import Source, View
from convoy.data.sources.open import open_source
from convoy.errors import ConfigError
from convoy.models.network import plan_training_network
from convoy.planning.plan import RunPlan, num_used_samples, plan_run
from convoy.run.process import choose_device, make_deterministic


@dataclass(frozen=True)
class OpenFeed:
    """A training feed with its plan, source and loader options."""

    plan: RunPlan
    source: Source
    device: torch.device
    feed: TrainingFeed
    options: LoaderOptions

    @property
    def view(self) -> View:
        """The training view of the samples, always prepared in this process."""
        data, size = self.plan.config.data, self.plan.network.image_size
        in_process = replace(data, dataloader_kind="threads")
        return self.source.training_view(in_process, size, make_ledger(data))

    @property
    def micro_batches_per_epoch(self) -> int:
        """Micro-batches of all replicas in an epoch."""
        return self.plan.batch.micro_batches * self.feed.order.updates_per_epoch

    def indices(self, first: int, count: int) -> Iterator[MicroBatchIndex]:
        """Indices of `count` micro-batches, starting with `first`, over all replicas."""
        per_update, indices = self.plan.batch.micro_batches, range(first, first + count)
        return (MicroBatchIndex(*divmod(index, per_update)) for index in indices)


def open_feed(config: RunConfig) -> OpenFeed:
    """Open the training feed of a configuration on its device."""
    if config.data.data == "synthetic":
        raise ConfigError(
            "--data synthetic has no loader: the data is created on the device; "
            "use --data generated, which is created on the host"
        )
    device = choose_device(config.device)
    make_deterministic(config.device.threads)
    source = open_source(config.data, plan_training_network(config), "train")
    return feed_from_source(config, source, device)


def feed_from_source(config: RunConfig, source: Source, device: torch.device) -> OpenFeed:
    """Create the training feed of an open source."""
    plan = plan_run(config, num_used_samples(config, len(source)))
    feed = make_training_feed(plan, source, device, NeededInputs(), make_ledger(config.data))
    assert isinstance(feed, TrainingFeed)
    return OpenFeed(plan, source, device, feed, loader_options(config))
