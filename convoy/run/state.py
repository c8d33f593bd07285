"""Convert a training run to checkpoint contents and back, in any layout."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar, get_type_hints

import torch
from torch import Tensor

from convoy.checkpoint.format import JSON, CheckpointContents, check_match, weights_sha256
from convoy.engine.metrics import Totals
from convoy.engine.step_guard import GuardState
from convoy.errors import CheckpointError, NumericError
from convoy.numerics.flat import FlatParameters
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import make_update_rule
from convoy.parallel import tensor_io
from convoy.planning.plan import RunPlan
from convoy.run.build import TrainingParts
from convoy.run.network import build_network
from convoy.run.parameter_groups import weights_by_policy

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingState:
    """Capture and restore the state of a run on this process."""

    parts: TrainingParts

    def capture(self, update: int, metadata: dict[str, JSON]) -> CheckpointContents | None:
        """Gather the state on rank 0; all processes must call this.

        The tensors may be the live ones: copy them before the next update.
        """
        totals = self.parts.trainer.meter.totals()
        model = self._gather_stages(self._model())
        state: dict[str, Tensor] = {}  # full tensors; replicas may have shards
        for optimizer in self.parts.optimizers:
            state |= optimizer.named_state()
        optimizer_state = self._gather_stages(state)
        ema = self.parts.ema  # started on all processes or on none
        averages = self._gather_stages(ema.named_averages()) if ema.started else {}
        if not self.parts.context.control.is_rank_zero:
            return None
        check_finite(model, update)
        position = self._position(update) | {
            "update_in_epoch": update % self.parts.trainer.plan.updates_per_epoch,
            "meter": asdict(totals),
            "step_guard": {**self.parts.trainer.update_step.guard.state()},
        }
        return CheckpointContents(model, optimizer_state, averages, position | metadata)

    def capture_average(self, update: int, metadata: dict[str, JSON]) -> CheckpointContents | None:
        """Gather the EMA as a model on rank 0; all processes must call this."""
        model = self._gather_stages(self.parts.ema.named_averages())
        if not self.parts.context.control.is_rank_zero:
            return None
        return CheckpointContents(model=model, state=self._position(update) | metadata)

    def _position(self, update: int) -> dict[str, JSON]:
        return {"update": update, "epoch": self.parts.trainer.plan.epoch_after(update)}

    def _model(self) -> dict[str, Tensor]:
        """Master weights and running statistics."""
        model = self.parts.network.tensors()
        for optimizer in self.parts.optimizers:
            model |= optimizer.named_master_weights()
        return model

    def weights_sha256(self) -> str | None:
        """Digest of the whole network on rank 0; all processes must call this."""
        model = self._gather_stages(self._model())
        return weights_sha256(model) if self.parts.context.control.is_rank_zero else None

    def _gather_stages(self, local_tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gather the tensors of all stages on rank 0; other ranks return their own."""
        group = self.parts.context.groups.pipeline
        if group.process_group is None or self.parts.context.coordinates.replica > 0:
            return local_tensors
        if group.index > 0:
            tensor_io.send(local_tensors, group.process_group, to=0)
            return local_tensors
        for stage in range(1, group.size):
            local_tensors = local_tensors | tensor_io.receive(group.process_group, source=stage)
        return local_tensors

    def digest(self) -> bytes:
        """Digest of the local weights and running statistics, compared between replicas."""
        return bytes.fromhex(weights_sha256(self.parts.network.tensors()))

    @property
    def is_finite(self) -> bool:
        return all(torch.isfinite(tensor).all() for tensor in self.parts.network.tensors().values())

    def restore(self, contents: CheckpointContents) -> None:
        self.parts.network.load(contents.model)
        for optimizer in self.parts.optimizers:
            optimizer.load_state(contents.optimizer)
            optimizer.load_weights(contents.model)
        self.parts.ema.load_averages(contents.averages)
        self.parts.trainer.meter.reset(_read_totals(contents.state.get("meter")))
        guard_state = _read_guard_state(contents.state)
        self.parts.trainer.update_step.guard.load_state(guard_state)


def check_fits(plan: RunPlan, contents: CheckpointContents) -> None:
    """Check that a checkpoint matches the network and optimizer of the plan."""
    network = build_network(plan.network, 0, torch.device("meta"))
    check_match(contents.model, network.tensors())
    if contents.averages and plan.config.average.ema_decay:
        averages = {name: tensor.float() for name, tensor in network.tensors().items()}
        check_match(contents.averages, averages, what="average")
    rule = make_update_rule(plan.config.optimizer, plan.batch.samples_per_update)
    template: dict[str, Tensor] = {}
    for policy, weights in weights_by_policy(plan.config, network.slice).items():
        template |= Optimizer(FlatParameters(weights), rule, policy=policy).state_template()
    check_match(contents.optimizer, template, what="optimizer")
    _read_totals(contents.state.get("meter"))
    _read_guard_state(contents.state)


def check_finite(tensors: Mapping[str, Tensor], update: int) -> None:
    """Raise NumericError for non-finite values: a checkpoint must be resumable."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise NumericError(
                f"{name} is not finite after update {update}, so it is not saved; "
                "start again, or resume an earlier checkpoint with --override, with a lower --lr"
            )


def _read_totals(meter: JSON) -> Totals:
    """Read the sums of the metrics; older checkpoints have no `left_out`."""
    values = {"left_out": 0, **meter} if isinstance(meter, dict) else meter
    return _read(Totals, values, "metric totals (key 'meter')")


# Names in older checkpoints → fields of GuardState.
_OLD_GUARD_FIELDS = {
    "followed": "dynamic_scale",
    "before": "last_applied_scale",
    "ceiling": "max_scale",
    "calm": "finite_updates",
    "in_a_row": "consecutive_skips",
}


def _read_guard_state(state_table: Mapping[str, JSON]) -> GuardState:
    """Read loss scale and skipped updates; older checkpoints have other names, or none."""
    saved = state_table.get("step_guard", state_table.get("judge"))
    if isinstance(saved, dict):
        saved = {_OLD_GUARD_FIELDS.get(name, name): value for name, value in saved.items()}
    what = "loss scale and skipped-update counts (key 'step_guard')"
    state = GuardState() if saved is None else _read(GuardState, saved, what)
    scales = (state.dynamic_scale, state.last_applied_scale, state.max_scale)
    if any(scale is not None and scale <= 0 for scale in scales):
        raise CheckpointError(f"state.json: the {what} are missing or invalid")
    return state


def _read(dataclass_type: type[T], saved: JSON, what: str) -> T:
    """Create the dataclass; every field must be present and have its type."""
    types = get_type_hints(dataclass_type)
    values = saved if isinstance(saved, dict) else {}
    if not all(name in values and isinstance(values[name], types[name]) for name in types):
        raise CheckpointError(f"state.json: the {what} are missing or invalid")
    return dataclass_type(**{name: values[name] for name in types})
