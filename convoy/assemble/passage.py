"""How micro-batches pass through the stages of a replica, and how replicas meet."""

from collections.abc import Callable, Sequence

from convoy.assemble.network import Network
from convoy.assemble.post import Post
from convoy.engine.evaluator import Answers
from convoy.engine.update import Passage
from convoy.parallel.exact import ExactReplicas
from convoy.parallel.inference import Inference
from convoy.parallel.line import Line
from convoy.parallel.peers import Peers
from convoy.parallel.pipeline import LoneInference, Loss, Pipeline
from convoy.parallel.replicas import Alone, FastReplicas, Meeting, Replicas
from convoy.parallel.stage import Borders, Stage, borders_of
from convoy.plan.network import NetworkPlan


def make_passage(
    post: Post, network: Network, loss: Loss, collect: Sequence[Callable[[], None]]
) -> Passage:
    """Forward and backward: through the only stage, or through ours of several.

    `collect` has a function for each stage, which takes the gradients of a micro-batch.
    """
    plan, group = post.plan, post.groups.line.handle
    if group is None:
        (run,), (take,) = network.runs, collect
        return Pipeline(run, loss, take)
    accumulation = plan.batch.gradient_accumulation
    borders = _borders(post, plan.network, plan.batch.micro_batch_size)
    stages = [
        Stage(run, border, group, plan.schedule, accumulation, turn)
        for turn, (run, border) in enumerate(zip(network.runs, borders, strict=True))
    ]
    return Line(stages, loss, collect)


def make_answers(post: Post, network: Network, samples: int) -> Answers:
    """Forward alone, for batches of so many whole images."""
    group = post.groups.line.handle
    if group is None:
        (run,) = network.runs
        return LoneInference(run)
    borders = _borders(post, post.plan.validation_network, samples)
    return Inference(network.runs, borders, group)


def make_replicas(post: Post) -> Replicas:
    """The copies of our stage."""
    group, config = post.groups.siblings.handle, post.plan.config
    if group is None:
        return Alone()
    meeting = Meeting(
        config.memory.enable_optimizer_rts,
        config.replica.max_cross_replica_buffer_size,
        config.replica.overlap_reduction,
    )
    kind = ExactReplicas if config.replica.reduction == "exact" else FastReplicas
    return kind(Peers(group), meeting)


def _borders(post: Post, network: NetworkPlan, samples: int) -> list[Borders]:
    device, still = post.device, post.plan.first_trained
    return [borders_of(network, one, samples, device, still) for one in post.stages]
