"""Pipelined inference: images enter at the first stage, logits leave the last one.

All processes run the same number of batches. With several processes all batches have one size.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn

from convoy.batch import Bundle
from convoy.parallel.channels import StageChannels, Transfer


class _ForwardStage:
    """A stage without backward; at most one batch is being sent to the next stage."""

    def __init__(self, module: nn.Module, channels: StageChannels) -> None:
        self.module = module
        self.channels = channels
        self.last_send = Transfer((), [])

    @torch.inference_mode()
    def compute(self, inputs: Bundle) -> Bundle:
        outputs: Bundle = self.module(*inputs)
        return outputs


class InferencePipeline:
    """The stages of one process. With several stages per process, a batch visits each process once
    per stage.

    Batches are run in groups of as many as there are processes: a process runs the group through
    its first stage, then through its second, …, so that it never waits for a batch in the loop.
    """

    def __init__(
        self, modules: Sequence[nn.Module], channels: Sequence[StageChannels] = (StageChannels(),)
    ) -> None:
        self._stages = [_ForwardStage(*pair) for pair in zip(modules, channels, strict=True)]
        # Concurrent stages count as one, so a process may have more channels than stages.
        self._processes = max(1, channels[0].stages // len(channels))

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """Yield the logits of each batch on the last stage, None elsewhere; must be exhausted.

        Only the first stage needs images. The train/eval mode of the modules is restored.
        """
        bundles = (None if images is None else (images,) for images in batches)
        with _eval_mode([stage.module for stage in self._stages]):
            for outputs in self.run_bundles(bundles):
                yield None if outputs is None else outputs[0]

    def run_bundles(self, batches: Iterable[Bundle | None]) -> Iterator[Bundle | None]:
        """The same for stages with any number of tensors, in the current mode of the modules."""
        if len(self._stages) == self._stages[0].channels.stages == 1:
            yield from self._run_single_stage(batches)
        else:
            yield from self._run_pipelined(batches)

    def _run_single_stage(self, batches: Iterable[Bundle | None]) -> Iterator[Bundle]:
        """Run batch by batch; with no other stage, nothing is prefetched."""
        (stage,) = self._stages
        for bundle in batches:
            assert bundle is not None, "the first stage needs inputs"
            yield stage.compute(bundle)

    def _run_pipelined(self, batches: Iterable[Bundle | None]) -> Iterator[Bundle | None]:
        """Receive the next input during a computation, unless it is the same batch on the next
        stage of this process, which has not been sent yet."""
        steps = self._schedule_batches(batches)
        following = next(steps, None)
        while following is not None:
            (stage, number, bundle), following = following, next(steps, None)
            upstream, downstream = stage.channels.upstream, stage.channels.downstream
            received = bundle if upstream is None else upstream.receive()
            if following is not None and following[1] != number:
                next_upstream = following[0].channels.upstream
                if next_upstream is not None:
                    next_upstream.prefetch()
            outputs = stage.compute(received)
            if downstream is not None:
                stage.last_send.wait()
                stage.last_send = downstream.send(outputs)
            if stage is self._stages[-1]:
                yield outputs if downstream is None else None
        for stage in self._stages:
            stage.last_send.wait()

    def _schedule_batches(
        self, batches: Iterable[Bundle | None]
    ) -> Iterator[tuple[_ForwardStage, int, Bundle]]:
        """Yield (stage, batch number, inputs) in order; inputs only where they exist."""
        numbered = enumerate(batches)
        group_size = self._processes if len(self._stages) > 1 else 1
        while group := list(islice(numbered, group_size)):
            for stage in self._stages:
                for number, bundle in group:
                    yield stage, number, bundle or ()


@contextmanager
def _eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    were_training = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, was_training in zip(modules, were_training, strict=True):
            module.train(was_training)
