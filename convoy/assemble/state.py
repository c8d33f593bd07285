"""A training run as checkpoint contents, and back, whatever its layout."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from convoy.assemble.kinds import by_kind
from convoy.assemble.live_average import LiveAverage
from convoy.assemble.network import Network, build_network, whole
from convoy.assemble.post import Post
from convoy.checkpoint.contents import Contents, match
from convoy.checkpoint.digest import weights_sha256
from convoy.checkpoint.strict_json import JSON
from convoy.engine.meter import Totals
from convoy.engine.trainer import Trainer
from convoy.engine.verdict import Record
from convoy.errors import CheckpointError, NumericError
from convoy.numerics.flat import FlatWeights
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import rule_of
from convoy.parallel import cargo
from convoy.parallel.optimizer_state import gatherer
from convoy.parallel.replicas import Replicas
from convoy.plan.plan import RunPlan


@dataclass(frozen=True)
class TrainingState:
    """Everything of a run that changes, as far as this process holds it."""

    post: Post
    network: Network
    optimizers: list[Optimizer]  # one for each of our stages, and each kind of weights there
    replicas: Replicas
    trainer: Trainer
    average: LiveAverage

    def capture(self, update: int, facts: dict[str, JSON]) -> Contents | None:
        """The state after so many updates, on the first process; the others give their parts.

        The tensors may be the live ones: copy before going on.
        """
        totals = self.trainer.meter.totals()
        model = self._of_all_stages(self._model())
        optimizer = self._of_all_stages(self._optimizer_state())
        averages = self._averages()
        if not self.post.council.is_first:
            return None
        _refuse_broken(model, update)
        loop = self.trainer.plan
        place: dict[str, JSON] = {
            "update": update,
            "epoch": loop.epoch_after(update),
            "update_in_epoch": update % loop.updates_per_epoch,
            "meter": asdict(totals),
            "judge": {**self.trainer.update.judge.record()},
        }
        return Contents(model, optimizer, averages, place | facts)

    def _averages(self) -> dict[str, Tensor]:
        """All processes know whether there are any."""
        return self._of_all_stages(self.average.named()) if self.average.begun else {}

    def average_alone(self, update: int, facts: dict[str, JSON]) -> Contents | None:
        """The average as a model of its own, on the first process; the others give their parts."""
        model = self._averages()
        if not self.post.council.is_first:
            return None
        place: dict[str, JSON] = {"update": update, "epoch": self.trainer.plan.epoch_after(update)}
        return Contents(model=model, state=place | facts)

    def _model(self) -> dict[str, Tensor]:
        """Weights as they are kept, and running statistics."""
        model = self.network.tensors()
        for one in self.optimizers:
            model |= one.named_masters(gatherer(self.replicas, one.flat.elements))
        return model

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Whole vectors, though each replica may hold a part alone."""
        state: dict[str, Tensor] = {}
        for one in self.optimizers:
            state |= one.named_state(gatherer(self.replicas, one.flat.elements))
        return state

    def weights_sha256(self) -> str | None:
        """Of the whole network, on the first process; all must ask."""
        model = self._of_all_stages(self._model())
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

    @property
    def is_sound(self) -> bool:
        """Whether our weights and statistics are finite."""
        return all(bool(torch.isfinite(one).all()) for one in self.network.tensors().values())

    def refuse_broken(self, update: int) -> None:
        """Weights that are not finite are no result."""
        _refuse_broken(self.network.tensors(), update)

    def restore(self, contents: Contents) -> None:
        """Go back to a captured state that fits."""
        self.network.load(contents.model)
        for one in self.optimizers:
            one.load(contents.optimizer)
            one.take(contents.model)
        self.average.load(contents.averages)
        self.trainer.meter.start_from(_totals(contents.state.get("meter")))
        self.trainer.update.judge.go_on_from(_record(contents.state.get("judge")))


def refuse_misfit(plan: RunPlan, contents: Contents) -> None:
    """A checkpoint of another network or optimizer is no place to go on from."""
    meta = torch.device("meta")
    network = build_network(plan.network, [whole(plan.network)], 0, meta)
    match(contents.model, network.tensors())
    if contents.averages and plan.config.average.ema_decay:
        averages = {name: one.float() for name, one in network.tensors().items()}
        match(contents.averages, averages, of="average")
    rule = rule_of(plan.config.optimizer, plan.batch.samples_per_update)
    form: dict[str, Tensor] = {}
    for kind, weights in by_kind(plan.config, network.slice).items():
        form |= Optimizer(FlatWeights(weights), rule, kind=kind).named_form()
    match(contents.optimizer, form, of="optimizer")
    _totals(contents.state.get("meter"))
    _record(contents.state.get("judge"))


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
        left_out = meter.get("left_out", 0)
        assert isinstance(loss, float) and isinstance(right, int)
        assert isinstance(micro_batches, int) and isinstance(samples, int)
        assert isinstance(left_out, int)
    except (AssertionError, KeyError):
        raise CheckpointError("state.json has no sums of the running report (meter)") from None
    return Totals(loss, micro_batches, right, samples, left_out)


def _record(saved: JSON) -> Record:
    """Of the scale and of skipped updates; older checkpoints have none."""
    if saved is None:
        return Record()
    try:
        assert isinstance(saved, dict)
        followed, before = _scale(saved["followed"]), _scale(saved["before"])
        skipped, in_a_row = saved["skipped"], saved["in_a_row"]
        ceiling, calm = _scale(saved["ceiling"]), saved["calm"]
        assert isinstance(skipped, int) and isinstance(in_a_row, int) and isinstance(calm, int)
    except (AssertionError, KeyError):
        raise CheckpointError("state.json has no loss scale and skipped updates (judge)") from None
    return Record(followed, before, skipped, ceiling, calm, in_a_row)


def _scale(saved: JSON) -> float | None:
    assert saved is None or (isinstance(saved, float) and saved > 0)
    return saved
