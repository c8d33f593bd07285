"""One process's part in an update of a pipeline over several processes.

Our schedule says what runs in which order; torch's runtime adds the sends and receives and carries
it out. It is driven below its public `step`, which wants the whole batch in one piece.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

from torch import Tensor
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _merge_bw,
    _PipelineScheduleRuntime,
)

from convoy.parallel.pipeline import Loss, MicroBatch, Passed, passed, scaled
from convoy.parallel.slice import Bundle
from convoy.parallel.stage import Stage
from convoy.plan.actions import Action, Backward, BackwardInput, BackwardWeight, Forward, Row

NOTHING: MicroBatch = (None, None)

_KINDS = {
    Forward: _ComputationType.FORWARD,
    Backward: _ComputationType.FULL_BACKWARD,
    BackwardInput: _ComputationType.BACKWARD_INPUT,
    BackwardWeight: _ComputationType.BACKWARD_WEIGHT,
}


class Line:
    """The face of `Pipeline`, for the stages of one process; results exist where the last one is.

    `after_backward` has a function for each of the stages. It takes the gradients of one
    micro-batch from the weights of that stage, micro-batches come in their order.
    """

    def __init__(
        self, stages: Sequence[Stage], loss: Loss, after_backward: Sequence[Callable[[], None]]
    ) -> None:
        self.stages = list(stages)
        self.loss = loss
        self.stash_seen = 0  # the most activation sets that all stages together held at once
        self.after_backward = list(after_backward)
        self._passed: list[Passed] = []
        self._scale = 1.0
        self._runtime = _Runtime(self.stages, self._loss)
        # At most one of them is an end of the line, where images enter or labels are needed.
        self._fed = next((one for one in self.stages if one.is_last), self.stages[0])

    def run(self, micro_batches: Iterable[MicroBatch], scale: float = 1.0) -> list[Passed]:
        """Train on each micro-batch; `after_backward` takes the gradients of each, so many times
        too large."""
        self._passed = []
        self._scale = scale
        feed = iter(micro_batches)
        for stage, after_backward in zip(self.stages, self.after_backward, strict=True):
            taken = feed if stage is self._fed else repeat(NOTHING)
            stage.begin(self._watched(taken), after_backward)
        self._runtime.run()
        for stage in self.stages:
            stage.finish()
        return self._passed

    def _watched(self, feed: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """A stage takes from its feed when it goes forward: then it will hold one more."""
        for micro_batch in feed:
            held = sum(stage.stash for stage in self.stages) + 1
            self.stash_seen = max(self.stash_seen, held)
            yield micro_batch

    def _loss(self, made: Bundle, target: None) -> Tensor:
        """The labels came with the micro-batch that has just gone forward."""
        del target
        labels = self._fed.labels
        assert labels is not None, "the last stage needs labels"
        (logits,) = made
        loss = self.loss(logits, labels)
        self._passed.append(passed(logits, labels, loss))
        return scaled(loss, self._scale)


class _Runtime(_PipelineScheduleRuntime):
    """torch's runtime with our order of work."""

    def __init__(self, stages: list[Stage], loss: Callable[[Bundle, None], Tensor]) -> None:
        _say_less()
        first = stages[0]
        super().__init__(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            stages, first.micro_batches, loss_fn=loss, scale_grads=False
        )
        orders = first.schedule.orders(first.num_stages, first.micro_batches)
        self.pipeline_order = {
            process: _torch_actions(process, order) for process, order in enumerate(orders)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)

    def run(self) -> None:
        """Images and labels reach the stage by its feed, so torch's lists of them stay empty."""
        targets = [None] * self._n_microbatches
        self._step_microbatches(target_mbs=targets, return_outputs=False)


def _torch_actions(process: int, order: Row) -> list[_Action | None]:
    """The first stage has nobody to answer: its two halves stand together and become one."""
    return [*_merge_bw([_torch_action(process, action) for action in order])]


def _torch_action(process: int, action: Action) -> _Action:
    stage = process if action.stage is None else action.stage
    return _Action(stage, _KINDS[type(action)], action.micro)


def _say_less() -> None:
    """torch tells which class it uses, and the whole order of work when something fails in it."""
    logger = logging.getLogger("torch.distributed.pipelining.schedules")
    logger.addFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    """What fails is raised as well, so nothing is lost."""
    return record.levelno == logging.WARNING
