"""The live network of one process of a training run, with all that is done to it."""

from convoy.assemble.kinds import compute_in
from convoy.assemble.network import (
    Network,
    build_network,
    compiled,
    freeze,
    share_statistics,
    train_only,
    with_recomputation,
)
from convoy.assemble.post import Post


def training_network(post: Post) -> Network:
    """Our stages, fresh, as the plan wants them."""
    plan, config = post.plan, post.plan.config
    micros = plan.batch.micro_batches_of(post.at.replica)
    built = build_network(plan.network, post.stages, config.data.seed, post.device, micros)
    compute_in(config, built, post.device, post.stages)
    fresh = freeze(built, [layer.name for layer in plan.frozen_layers])
    train_only(fresh, config.optimizer.variable_filter)
    share_statistics(fresh, post.groups.span.handle)
    ready = compiled(fresh) if config.compiler.compile else fresh
    return with_recomputation(ready, plan.recompute)
