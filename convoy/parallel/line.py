"""One stage's part in an update of a pipeline over several processes.

Our schedule says what runs in which order; torch's runtime adds the sends and receives and carries
it out. It is driven below its public `step`, which wants the whole batch in one piece.
"""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)

from convoy.parallel.pipeline import Loss, MicroBatch, Passed, passed
from convoy.parallel.slice import Bundle
from convoy.parallel.stage import Stage
from convoy.plan.schedules import Action, Forward


class Line:
    """The face of `Pipeline`, for one stage of several; results exist on the last stage only."""

    def __init__(self, stage: Stage, loss: Loss, after_backward: Callable[[], None]) -> None:
        self.stage = stage
        self.loss = loss
        self.after_backward = after_backward
        self._passed: list[Passed] = []
        self._runtime = _Runtime(stage, self._loss)

    def run(self, micro_batches: Iterable[MicroBatch]) -> list[Passed]:
        """Train on each micro-batch; `after_backward` takes the gradients of each."""
        self._passed = []
        self.stage.begin(iter(micro_batches), self.after_backward)
        self._runtime.run()
        self.stage.finish()
        return self._passed

    @property
    def stash_seen(self) -> int:
        """The most activation sets that this stage held at once."""
        return self.stage.stash_seen

    def _loss(self, made: Bundle, target: None) -> Tensor:
        """The labels came with the micro-batch that has just gone forward."""
        del target
        labels = self.stage.labels
        assert labels is not None, "the last stage needs labels"
        (logits,) = made
        loss = self.loss(logits, labels)
        self._passed.append(passed(logits, labels, loss))
        return loss


class _Runtime(_PipelineScheduleRuntime):
    """torch's runtime with our order of work."""

    def __init__(self, stage: Stage, loss: Callable[[Bundle, None], Tensor]) -> None:
        super().__init__(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            [stage], stage.micro_batches, loss_fn=loss, scale_grads=False
        )
        self.pipeline_order = {
            one: [
                _torch_action(one, action)
                for action in stage.schedule.actions(one, stage.num_stages, stage.micro_batches)
            ]
            for one in range(stage.num_stages)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)

    def run(self) -> None:
        """Images and labels reach the stage by its feed, so torch's lists of them stay empty."""
        targets = [None] * self._n_microbatches
        self._step_microbatches(target_mbs=targets, return_outputs=False)


def _torch_action(stage: int, action: Action) -> _Action:
    forward = isinstance(action, Forward)
    kind = _ComputationType.FORWARD if forward else _ComputationType.FULL_BACKWARD
    return _Action(stage, kind, action.micro)
