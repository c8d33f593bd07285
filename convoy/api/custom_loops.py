"""Pipelines and optimizers for the user's own training loops."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from convoy.data.infeed import Infeed
from convoy.engine.gradient_step import AccumulatingOptimizer, StepOptions
from convoy.engine.outfeed import Outfeed
from convoy.engine.pipeline import Pipeline
from convoy.engine.pipeline_options import PipelineOptions, Stages
from convoy.run.script_process import join_processes


def pipeline(
    stages: Stages,
    infeed: Infeed | None = None,
    outfeed: Outfeed | None = None,
    *,
    gradient_accumulation: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    repeat_count: int = 1,
    schedule: str = "grouped",
    device_mapping: Sequence[int | Sequence[int]] | None = None,
    recompute: str | None = None,
    recompute_checkpoints: Sequence[str] = (),
    accumulator_dtype: torch.dtype | Callable[[Tensor], torch.dtype | None] | None = None,
    reduction: str = "mean",
    map_gradient: Callable[[Tensor, nn.Parameter], Tensor] | None = None,
    offload_optimizer: bool = False,
    offload_activations: bool = False,
    offload_accumulators: bool = False,
    shard_optimizer: bool = False,
    outfeed_loss: bool = False,
    outfeed_mask: Sequence[bool] | None = None,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: torch.dtype | Callable[[Tensor], torch.dtype | None] | None = None,
    replicas: int | None = None,
    **guide_arguments: Any,
) -> Pipeline:
    """Create a pipeline of your own stages. Call the result to run `repeat_count` updates.

    Alone, a process runs all stages. Started by `convoy launch` or torchrun, each process runs the
    stages of one device, and further processes are replicas; the trained weights are bitwise
    identical. Buffers, such as the running statistics of batch norm, are those of each replica.
    Without an optimizer the pipeline runs inference.

    Args:
        stages: At least two functions or modules. The outputs of one are the arguments of the
            next: a tensor or tuple as positional, a dictionary as keyword arguments. A list in
            place of a stage contains concurrent stages, which get the same arguments; the next
            stage gets the outputs of all.
        infeed: Where the first stage takes an element for each micro-batch from.
        outfeed: Where the outputs of the last stage go.
        gradient_accumulation: Micro-batches of an update on each replica.
        optimizer: Any torch optimizer over the parameters of the stages.
        loss_fn: Called with the outputs of the last stage; returns the loss of a micro-batch.
        repeat_count: Updates for each call.
        schedule: `grouped`, `interleaved` (1F1B), `1f1b`, `sequential` or `zero-bubble`.
        device_mapping: Device of each stage, from 0; by default one each, in order.
        recompute: `stage` recomputes the activations of a whole stage before its backward pass;
            `segments` those of an `nn.Sequential` part by part.
        recompute_checkpoints: Names of layers whose outputs are stored, for `segments`.
        accumulator_dtype: Dtype of the gradient sums, or a function from a parameter to its dtype.
            Gradients reach the optimizer in this dtype.
        reduction: `mean` over the micro-batches, `running-mean`, or `sum`; over replicas always
            the mean.
        map_gradient: Called with each reduced gradient and its parameter; returns the gradient
            that the optimizer uses.
        offload_optimizer: Store optimizer state outside the device between updates.
        offload_activations: Store the activations of waiting micro-batches outside the device.
        offload_accumulators: Store the gradient sums outside the device between micro-batches.
        shard_optimizer: Each replica updates some of the parameters and has only their state.
        outfeed_loss: Enqueue the loss instead of the outputs.
        outfeed_mask: True for each output that is not enqueued.
        accumulate_outfeed: Enqueue the sum over the micro-batches of an update.
        accumulate_outfeed_dtype: Dtype of this sum, or a function from an output to its dtype.
        replicas: Number of replicas; by default the processes divided by the devices.
        **guide_arguments: Arguments of the IPU programming guide are rejected with the name that
            they have here.
    """
    values = {name: value for name, value in locals().items() if name in PipelineOptions.names()}
    options = PipelineOptions.of({**values, **guide_arguments})
    return Pipeline(stages, infeed, outfeed, options, join_processes)


class DistributedOptimizer(AccumulatingOptimizer):
    """Accumulates gradients and averages them over the replicas, around any torch optimizer.

    Call `backward` and `step` for each micro-batch; every `gradient_accumulation`-th step updates
    the parameters. Under `convoy launch` or torchrun, each process is a replica.

    Args:
        optimizer: Any torch optimizer.
        gradient_accumulation: Micro-batches of an update on each replica.
        accumulator_dtype: As for `pipeline`.
        reduction: As for `pipeline`.
        map_gradient: As for `pipeline`.
        offload_optimizer: As for `pipeline`.
        offload_accumulators: As for `pipeline`.
        shard_optimizer: As for `pipeline`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        gradient_accumulation: int = 1,
        accumulator_dtype: torch.dtype | Callable[[Tensor], torch.dtype | None] | None = None,
        reduction: str = "mean",
        map_gradient: Callable[[Tensor, nn.Parameter], Tensor] | None = None,
        offload_optimizer: bool = False,
        offload_accumulators: bool = False,
        shard_optimizer: bool = False,
    ) -> None:
        options = StepOptions(
            gradient_accumulation,
            accumulator_dtype,
            reduction,
            map_gradient,
            offload_optimizer,
            offload_accumulators,
            shard_optimizer,
        )
        super().__init__(optimizer, join_processes(1), options)
