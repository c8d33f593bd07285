"""The weights of each stage, as the update holds them: those of one kind in one vector."""

from pathlib import Path

from convoy.assemble.kinds import Weights, by_kind
from convoy.assemble.post import Post
from convoy.assemble.roles import named_by, without_decay
from convoy.config.schema import RunConfig
from convoy.engine.update import Holding
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.numerics.kinds import Kind, Rounder
from convoy.numerics.reductions import reduction_of
from convoy.numerics.rounding import StochasticRounder
from convoy.optim.optimizer import Optimizer, Owned
from convoy.optim.rule import Rule
from convoy.optim.rules import rule_of
from convoy.parallel.optimizer_state import home_for, row_gatherer
from convoy.parallel.replicas import Replicas
from convoy.parallel.sharding import Shards
from convoy.parallel.slice import Slice


class Holdings:
    """Makes the holdings of the stages of one process."""

    def __init__(self, post: Post, replicas: Replicas, scratch: Path) -> None:
        """`scratch` is where state may lie that is kept off the device."""
        self.post = post
        self.replicas = replicas
        self.scratch = scratch

    def of(self, layers: Slice) -> list[Holding]:
        """One for each kind of weights."""
        groups = by_kind(self.post.plan.config, layers)
        return [self._holding(kind, weights, layers) for kind, weights in groups.items()]

    def _holding(self, kind: Kind, weights: Weights, layers: Slice) -> Holding:
        plan, post = self.post.plan, self.post
        accumulation = plan.batch.gradient_accumulation
        spared = without_decay(layers, plan.config.optimizer.weight_decay_spares)
        flat = FlatWeights(weights, spared)
        home = home_for(post.device, plan.config.memory.offload_optimizer, self.scratch)
        rule, rounder = self._rule(layers), rounder_of(plan.config, flat)
        optimizer = Optimizer(flat, rule, self._owned(flat.elements), home, kind, rounder)
        first = post.at.replica * accumulation
        reduction = reduction_of(kind, plan.batch.micro_batches)
        tree = GradientTree(flat, first, kind.sum_type, accumulation, reduction, kind.used)
        return Holding(tree, optimizer)

    def _rule(self, layers: Slice) -> Rule:
        wish, samples = self.post.plan.config.optimizer, self.post.plan.batch.samples_per_update
        skipped = named_by(layers, wish.lars_skip_list)
        return rule_of(wish, samples, layers.named_weights().keys() - skipped)

    def _owned(self, elements: int) -> Owned:
        shards = Shards(elements, self.post.plan.batch.replicas)
        return Owned(self.replicas.owned(elements), row_gatherer(self.replicas, shards))


def rounder_of(config: RunConfig, flat: FlatWeights) -> Rounder:
    """How new weights and state become 16 bits."""
    if not config.precision.enable_stochastic_rounding:
        return Rounder()
    return StochasticRounder(config.data.seed, flat.extents())
