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

    Without a launcher, one process runs all stages. Under `convoy launch` or torchrun, each process
    runs the stages of one device, and further processes are replicas; the trained weights are
    bitwise identical for the same micro-batches per update and number of threads, unless
    `reduction` is `sum`. Buffers, such as the running statistics of batch norm, are not
    synchronized between replicas. Without an optimizer the pipeline runs inference.

    Args:
        stages: At least two functions or modules. The outputs of one are the arguments of the
            next: a tensor or tuple as positional, a dictionary as keyword arguments. A list in
            place of a stage contains concurrent stages, which get the same arguments; the next
            stage gets the outputs of all.
        infeed: Source of the inputs of the first stage, one element per micro-batch.
        outfeed: Receives the outputs of the last stage.
        gradient_accumulation: Micro-batches of an update on each replica.
        optimizer: Any torch optimizer over the parameters of the stages.
        loss_fn: Called with the outputs of the last stage; returns the loss of a micro-batch.
        repeat_count: Updates for each call.
        schedule: `grouped`, `interleaved` (1F1B), `1f1b`, `sequential` or `zero-bubble`.
        device_mapping: Index of the device of each stage; by default stage i runs on device i.
        recompute: `stage` recomputes the activations of a whole stage before its backward pass;
            `segments` those of an `nn.Sequential` part by part.
        recompute_checkpoints: With `segments`, names of layers whose outputs are stored.
        accumulator_dtype: Dtype of the gradient sums, or a function from a parameter to its dtype.
            The optimizer receives gradients of this dtype.
        reduction: How gradients of micro-batches are combined: `mean`, `running-mean` or `sum`.
            Gradients of replicas are always averaged.
        map_gradient: Called with each reduced gradient and its parameter; returns the gradient
            that the optimizer uses.
        offload_optimizer: Store optimizer state outside the device between updates.
        offload_activations: Store the tensors saved for the backward pass outside the device.
        offload_accumulators: Store the gradient sums outside the device between micro-batches.
        shard_optimizer: Shard the optimizer state (ZeRO-1): each replica updates some of the
            parameters and stores only their state.
        outfeed_loss: Enqueue the loss instead of the outputs.
        outfeed_mask: True for each output that is not enqueued.
        accumulate_outfeed: Enqueue the sum over the micro-batches of an update.
        accumulate_outfeed_dtype: Dtype of this sum, or a function from an output to its dtype.
        replicas: Number of replicas; by default the processes divided by the devices.
        **guide_arguments: Argument names of the IPU programming guide; they raise an error that
            gives convoy's name.
    """
    values = {name: value for name, value in locals().items() if name in PipelineOptions.names()}
    options = PipelineOptions.of({**values, **guide_arguments})
    return Pipeline(stages, infeed, outfeed, options, join_processes)


class DistributedOptimizer(AccumulatingOptimizer):
    """Wraps any torch optimizer: accumulates gradients and averages them over the replicas.

    Call `backward` and `step` for each micro-batch; every `gradient_accumulation`-th step updates
    the parameters. Under `convoy launch` or torchrun, each process is a replica. With an `Infeed`
    in `repeat`, the weights match those of one process up to rounding.

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
