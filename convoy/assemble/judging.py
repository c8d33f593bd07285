"""Who rules over the updates of a run, and what each process looks at for it."""

from collections.abc import Sequence

from convoy.assemble.network import Network
from convoy.assemble.post import Post
from convoy.engine.update import Holding
from convoy.engine.verdict import Judge, Policy
from convoy.numerics.loss_scale import LossScale, Tally
from convoy.numerics.traps import Traps, Watched
from convoy.numerics.types import FLOAT32


def make_judge(post: Post, network: Network, holdings: Sequence[Holding]) -> Judge:
    """All processes of a run have the same one, over their own gradients."""
    config, scale = post.plan.config, LossScale(post.plan.loop.loss_scale)
    wish = config.loss
    watches = config.precision.enable_fp_exceptions
    policy = Policy(wish.on_nonfinite == "skip", wish.max_skipped, watches)
    tallies = _tallies(post, holdings)
    # Programs of torch.compile run without the hooks of their layers.
    traps = None if config.compiler.compile else _traps(post, network, holdings)
    return Judge(post.council, scale, policy, tallies, traps)


def _tallies(post: Post, holdings: Sequence[Holding]) -> list[Tally]:
    """One for each holding whose gradients have 16 bits, if anybody wants to know or to clip."""
    counts = post.plan.loop.loss_scale.automatic
    saturates = post.plan.config.precision.saturate_on_overflow
    tallies = []
    for one in holdings:
        used = one.optimizer.kind.used
        if used != FLOAT32 and (counts or saturates):
            one.gradients.on_leaf = tally = Tally(used, counts, saturates)
            tallies.append(tally)
    return tallies


def _traps(post: Post, network: Network, holdings: Sequence[Holding]) -> Traps:
    names = [layer.name for layer in post.plan.network.layers]
    layers = [
        Watched(stage.first + number, module, one.moment, one.arithmetic.number)
        for stage, one in zip(post.stages, network.slices, strict=True)
        for number, module in enumerate(one.layers.values())
    ]
    return Traps(names, layers, [(one.gradients, one.optimizer.kind.used) for one in holdings])
