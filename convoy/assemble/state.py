"""A training run as checkpoint contents, and back, whatever its layout."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from convoy.assemble.network import Network, build_network, whole
from convoy.assemble.post import Post
from convoy.checkpoint.contents import Contents, match
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.strict_json import JSON
from convoy.engine.meter import Totals
from convoy.engine.trainer import Trainer
from convoy.errors import CheckpointError, NumericError
from convoy.numerics.flat import FlatWeights
from convoy.optim.optimizers import Sgd
from convoy.parallel import cargo
from convoy.parallel.optimizer_state import gatherer
from convoy.parallel.replicas import Replicas
from convoy.plan.plan import RunPlan


@dataclass(frozen=True)
class TrainingState:
    """Everything of a run that changes, as far as this process holds it."""

    post: Post
    network: Network
    optimizers: list[Sgd]  # one for each of our stages
    replicas: Replicas
    trainer: Trainer

    def capture(self, update: int, facts: dict[str, JSON]) -> Contents | None:
        """The state after so many updates, on the first process; the others give their parts.

        The tensors may be the live ones: copy before going on.
        """
        totals = self.trainer.meter.totals()
        model = self._of_all_stages(self.network.tensors())
        optimizer = self._of_all_stages(self._optimizer_state())
        if not self.post.council.is_first:
            return None
        _refuse_broken(model, update)
        loop = self.trainer.plan
        place: dict[str, JSON] = {
            "update": update,
            "epoch": loop.epoch_after(update),
            "update_in_epoch": update % loop.updates_per_epoch,
            "meter": asdict(totals),
        }
        return Contents(model=model, optimizer=optimizer, state=place | facts)

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Whole vectors, though each replica may hold a part alone."""
        state: dict[str, Tensor] = {}
        for one in self.optimizers:
            state |= one.named_state(gatherer(self.replicas, one.flat.elements))
        return state

    def weights_sha256(self) -> str | None:
        """Of the whole network, on the first process; all must ask."""
        model = self._of_all_stages(self.network.tensors())
        return weights_sha256(model) if self.post.council.is_first else None

    def _of_all_stages(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """On the first process what all stages of the first replica hold; elsewhere our own."""
        line = self.post.groups.line
        if line.handle is None or self.post.at.replica > 0:
            return own
        if line.index > 0:
            cargo.send(own, line.handle, to=0)
            return own
        for stage in range(1, line.size):
            own = own | cargo.receive(line.handle, source=stage)
        return own

    def digest(self) -> bytes:
        """Of our weights and running statistics: what replicas compare."""
        return bytes.fromhex(weights_sha256(self.network.tensors()))

    def refuse_broken(self, update: int) -> None:
        """Weights that are not finite are no result."""
        _refuse_broken(self.network.tensors(), update)

    def restore(self, contents: Contents) -> None:
        """Go back to a captured state that fits."""
        self.network.load(contents.model)
        for one in self.optimizers:
            one.load(contents.optimizer)
        self.trainer.meter.start_from(_totals(contents.state.get("meter")))


def refuse_misfit(plan: RunPlan, contents: Contents) -> None:
    """A checkpoint of another network or optimizer is no place to go on from."""
    meta = torch.device("meta")
    network = build_network(plan.network, [whole(plan.network)], 0, meta)
    match(contents.model, network.tensors())
    form = Sgd(FlatWeights(network.slice.named_weights()), plan.config.optimizer).named_form()
    match(contents.optimizer, form, of="optimizer")
    _totals(contents.state.get("meter"))


def _refuse_broken(tensors: Mapping[str, Tensor], update: int) -> None:
    """A checkpoint is something to go on from, so it never holds NaN."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NumericError(
                f"{name} is not finite after update {update}, so it is not saved; "
                "start again, or resume an earlier checkpoint with --override, with a lower --lr"
            )


def _totals(meter: JSON) -> Totals:
    try:
        assert isinstance(meter, dict)
        loss, right = meter["loss"], meter["right"]
        micro_batches, samples = meter["micro_batches"], meter["samples"]
        assert isinstance(loss, float) and isinstance(right, int)
        assert isinstance(micro_batches, int) and isinstance(samples, int)
    except (AssertionError, KeyError):
        raise CheckpointError("state.json has no sums of the running report (meter)") from None
    return Totals(loss, micro_batches, right, samples)
