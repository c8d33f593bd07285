"""A training run as checkpoint contents, and back."""

from dataclasses import asdict, dataclass

import torch

from convoy.assemble.network import Network
from convoy.checkpoint.contents import Contents, match
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.strict_json import JSON
from convoy.engine.meter import Totals
from convoy.engine.trainer import Trainer
from convoy.errors import CheckpointError, NumericError
from convoy.optim.optimizers import Sgd
from convoy.parallel.optimizer_state import gatherer
from convoy.parallel.replicas import Replicas


@dataclass(frozen=True)
class TrainingState:
    """Everything of a run that changes."""

    network: Network
    optimizer: Sgd
    replicas: Replicas
    trainer: Trainer

    def capture(self, update: int, facts: dict[str, JSON]) -> Contents:
        """The state after so many updates. The tensors are the live ones: copy before going on.

        Replicas that share the optimizer's state must all call this.
        """
        tensors = {name: one.detach() for name, one in self.network.slice.named_tensors().items()}
        _refuse_broken(tensors, update)
        gather = gatherer(self.replicas, self.optimizer.flat.elements)
        per_epoch = self.trainer.plan.updates_per_epoch
        return Contents(
            model=tensors,
            optimizer=self.optimizer.named_state(gather),
            state={
                "update": update,
                "epoch": update / per_epoch,
                "update_in_epoch": update % per_epoch,
                "meter": asdict(self.trainer.meter.totals()),
                **facts,
            },
        )

    def digest(self) -> bytes:
        """Of all weights and running statistics: what replicas compare."""
        tensors = {name: one.detach() for name, one in self.network.slice.named_tensors().items()}
        return bytes.fromhex(weights_sha256(tensors))

    def refuse_broken(self, update: int) -> None:
        """Weights that are not finite are no result."""
        _refuse_broken(self.network.slice.named_tensors(), update)

    def restore(self, contents: Contents) -> None:
        """Go back to a captured state; one of another network or optimizer is refused."""
        match(contents.model, self.network.slice.named_tensors())
        match(contents.optimizer, self.optimizer.named_form(), of="optimizer")
        self.network.load(contents.model)
        self.optimizer.load(contents.optimizer)
        self.trainer.meter.start_from(_totals(contents.state.get("meter")))


def _refuse_broken(tensors: dict[str, torch.Tensor], update: int) -> None:
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
