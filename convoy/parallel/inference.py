"""Forward passes without gradients: images enter at the first stage, logits leave the last.

All processes pass the same number of batches. Between processes they have one size.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn

from convoy.batch import Bundle
from convoy.parallel.channels import StageChannels, Transfer
from convoy.parallel.executor import PipelineStage, ScheduledAction, execute
from convoy.plan.actions import Action, Forward


class _ForwardStage(PipelineStage):
    """A stage that only goes forward; at most one batch is on its way to the next."""

    def __init__(self, module: nn.Module, channels: StageChannels) -> None:
        super().__init__(module, channels)
        self.sent = Transfer((), [])

    def forward(self, inputs: Bundle) -> Bundle:
        outputs = self._compute(inputs)
        if self.channels.downstream is not None:
            self.sent.wait()
            self.sent = self.channels.downstream.send(outputs)
        return outputs

    @torch.inference_mode()
    def _compute(self, inputs: Bundle) -> Bundle:
        outputs: Bundle = self.module(*inputs)
        return outputs


class InferencePipeline:
    """The stages of one process; the pipeline goes around all processes once for each of them.

    As many batches as there are processes take turns: all of them pass the first stage, then the
    second, … so that no process waits for a batch that is on its way around.
    """

    def __init__(
        self, modules: Sequence[nn.Module], channels: Sequence[StageChannels] = (StageChannels(),)
    ) -> None:
        self._stages = [_ForwardStage(*pair) for pair in zip(modules, channels, strict=True)]
        self._processes = channels[0].stages // len(channels)
        self._images: dict[int, Tensor] = {}  # by number, until the first stage takes them

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch on the last stage, None elsewhere; to be read to the end.

        Images are needed on the first stage only. The network keeps its mode.
        """
        with _evaluating([stage.module for stage in self._stages]):
            yield from self._alone(batches) if self._processes == 1 else self._together(batches)

    def _alone(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor]:
        """Nothing arrives from elsewhere, so no batch is taken before its turn."""
        (stage,) = self._stages
        for images in batches:
            assert images is not None, "the first stage needs images"
            yield stage.forward((images,))[0]

    def _together(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        for stage, outputs in execute(self._actions(batches), self._perform):
            if stage is self._stages[-1]:
                yield outputs[0] if stage.channels.downstream is None else None
        for stage in self._stages:
            stage.sent.wait()

    def _actions(
        self, batches: Iterable[Tensor | None]
    ) -> Iterator[ScheduledAction[_ForwardStage]]:
        """While a batch is computed, the next one arrives. If it is the same one, which has gone
        around all processes, it is not sent yet."""
        rest = self._steps(batches)
        step = next(rest, None)
        while step is not None:
            (stage, number), step = step, next(rest, None)
            ahead = step[0].channels.upstream if step is not None and step[1] != number else None
            yield ScheduledAction(stage, Forward(number), ahead)

    def _steps(self, batches: Iterable[Tensor | None]) -> Iterator[tuple[_ForwardStage, int]]:
        numbered = enumerate(batches)
        at_once = self._processes if len(self._stages) > 1 else 1
        while turn := list(islice(numbered, at_once)):
            self._images |= {number: images for number, images in turn if images is not None}
            for stage in self._stages:
                for number, _ in turn:
                    yield stage, number

    def _perform(
        self, stage: _ForwardStage, action: Action, received: Bundle
    ) -> tuple[_ForwardStage, Bundle]:
        if stage.channels.upstream is None:
            received = (self._images.pop(action.micro),)
        return stage, stage.forward(received)


@contextmanager
def _evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    were_training = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, was_training in zip(modules, were_training, strict=True):
            module.train(was_training)
