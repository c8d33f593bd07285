"""A training run as checkpoint contents, and back, whatever its layout."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from convoy.checkpoint.format import JSON, Contents, match, weights_sha256
from convoy.engine.metrics import Totals
from convoy.engine.step_guard import GuardState
from convoy.errors import CheckpointError, NumericError
from convoy.numerics.flat import FlatWeights
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import make_update_rule
from convoy.parallel import tensor_io as cargo
from convoy.parallel.replicas import gatherer
from convoy.plan.plan import RunPlan
from convoy.run.build import TrainingParts
from convoy.run.network import build_network, whole
from convoy.run.parameter_groups import by_policy


@dataclass(frozen=True)
class TrainingState:
    """Everything of a run that changes, as far as this process holds it: captured and restored."""

    parts: TrainingParts

    def capture(self, update: int, facts: dict[str, JSON]) -> Contents | None:
        """The state after so many updates, on the first process; the others give their parts.

        The tensors may be the live ones: copy before going on.
        """
        totals = self.parts.trainer.meter.totals()
        model = self._of_all_stages(self._model())
        optimizer = self._of_all_stages(self._optimizer_state())
        averages = self._averages()
        if not self.parts.context.control.is_first:
            return None
        refuse_broken(model, update)
        loop = self.parts.trainer.plan
        place: dict[str, JSON] = {
            "update": update,
            "epoch": loop.epoch_after(update),
            "update_in_epoch": update % loop.updates_per_epoch,
            "meter": asdict(totals),
            "judge": {**self.parts.trainer.step.guard.state()},
        }
        return Contents(model, optimizer, averages, place | facts)

    def _averages(self) -> dict[str, Tensor]:
        """All processes know whether there are any."""
        return self._of_all_stages(self.parts.ema.named()) if self.parts.ema.started else {}

    def average_alone(self, update: int, facts: dict[str, JSON]) -> Contents | None:
        """The average as a model of its own, on the first process; the others give their parts."""
        model = self._averages()
        if not self.parts.context.control.is_first:
            return None
        place: dict[str, JSON] = {
            "update": update,
            "epoch": self.parts.trainer.plan.epoch_after(update),
        }
        return Contents(model=model, state=place | facts)

    def _model(self) -> dict[str, Tensor]:
        """Weights as they are kept, and running statistics."""
        model = self.parts.network.tensors()
        for one in self.parts.optimizers:
            model |= one.named_masters(gatherer(self.parts.replicas, one.flat.elements))
        return model

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Whole vectors, though each replica may hold a part alone."""
        state: dict[str, Tensor] = {}
        for one in self.parts.optimizers:
            state |= one.named_state(gatherer(self.parts.replicas, one.flat.elements))
        return state

    def weights_sha256(self) -> str | None:
        """Of the whole network, on the first process; all must ask."""
        model = self._of_all_stages(self._model())
        return weights_sha256(model) if self.parts.context.control.is_first else None

    def _of_all_stages(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """On the first process what all stages of the first replica hold; elsewhere our own."""
        line = self.parts.context.groups.line
        if line.handle is None or self.parts.context.coordinates.replica > 0:
            return own
        if line.index > 0:
            cargo.send(own, line.handle, to=0)
            return own
        for stage in range(1, line.size):
            own = own | cargo.receive(line.handle, source=stage)
        return own

    def digest(self) -> bytes:
        """Of our weights and running statistics: what replicas compare."""
        return bytes.fromhex(weights_sha256(self.parts.network.tensors()))

    @property
    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(one).all()) for one in self.parts.network.tensors().values())

    def restore(self, contents: Contents) -> None:
        self.parts.network.load(contents.model)
        for one in self.parts.optimizers:
            one.load_state(contents.optimizer)
            one.load_weights(contents.model)
        self.parts.ema.load(contents.averages)
        self.parts.trainer.meter.start_from(_totals(contents.state.get("meter")))
        self.parts.trainer.step.guard.load_state(_record(contents.state.get("judge")))


def refuse_misfit(plan: RunPlan, contents: Contents) -> None:
    """A checkpoint of another network or optimizer is no place to go on from."""
    meta = torch.device("meta")
    network = build_network(plan.network, [whole(plan.network)], 0, meta)
    match(contents.model, network.tensors())
    if contents.averages and plan.config.average.ema_decay:
        averages = {name: one.float() for name, one in network.tensors().items()}
        match(contents.averages, averages, of="average")
    rule = make_update_rule(plan.config.optimizer, plan.batch.samples_per_update)
    form: dict[str, Tensor] = {}
    for policy, weights in by_policy(plan.config, network.slice).items():
        form |= Optimizer(FlatWeights(weights), rule, policy=policy).named_form()
    match(contents.optimizer, form, of="optimizer")
    _totals(contents.state.get("meter"))
    _record(contents.state.get("judge"))


def refuse_broken(tensors: Mapping[str, Tensor], update: int) -> None:
    """A checkpoint is something to go on from, so it never holds NaN."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NumericError(
                f"{name} is not finite after update {update}, so it is not saved; "
                "start again, or resume an earlier checkpoint with --override, with a lower --lr"
            )


def _totals(meter: JSON) -> Totals:
    match {"left_out": 0, **meter} if isinstance(meter, dict) else meter:
        case {
            "loss": float(loss),
            "right": int(right),
            "micro_batches": int(micro_batches),
            "samples": int(samples),
            "left_out": int(left_out),
        }:
            return Totals(loss, micro_batches, right, samples, left_out)
    raise CheckpointError("state.json has no sums of the running report (meter)")


def _record(saved: JSON) -> GuardState:
    """Of the scale and of skipped updates; older checkpoints have none."""
    match saved:
        case None:
            return GuardState()
        case {
            "followed": None | float() as followed,
            "before": None | float() as before,
            "ceiling": None | float() as ceiling,
            "skipped": int(skipped),
            "in_a_row": int(in_a_row),
            "calm": int(calm),
        } if all(scale is None or scale > 0 for scale in (followed, before, ceiling)):
            return GuardState(followed, before, skipped, ceiling, calm, in_a_row)
    raise CheckpointError("state.json has no loss scale and skipped updates (judge)")
