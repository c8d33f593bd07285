"""Pipelines of the user's own stages, on the executor and the reductions of the trainer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convoy.batch import Bundle
from convoy.data.infeed import Infeed, InfeedShare, as_element, describe_structure, to_device
from convoy.engine.custom_stages import (
    ArgumentForm,
    PipelineTrace,
    StageModule,
    StageNode,
    flatten,
    recomputed_segments,
    trace_stages,
    unflatten,
)
from convoy.engine.gradient_step import GradientStep, choose_dtype
from convoy.engine.loops import repeat
from convoy.engine.node_channels import JoinProcesses, connect_nodes, device_of
from convoy.engine.offload import ActivationOffload
from convoy.engine.outfeed import Outfeed
from convoy.engine.pipeline_options import PipelineOptions, Stages, check_options, make_nodes
from convoy.parallel.executor import PipelineExecutor, TrainingStage
from convoy.parallel.inference import InferencePipeline
from convoy.planning.actions import Forward
from convoy.planning.timetable import Timetable, draw_timetable, make_timetable


class Pipeline:
    """Runs micro-batches through stages. Create it with `convoy.pipeline`.

    Calling it runs `repeat_count` updates; the arguments of the call are the first arguments of
    the first stage in every micro-batch.
    """

    def __init__(
        self,
        stages: Stages,
        infeed: Infeed | None,
        outfeed: Outfeed | None,
        options: PipelineOptions,
        join: JoinProcesses,
    ) -> None:
        if infeed is not None and not isinstance(infeed, Infeed):
            raise TypeError(f"infeed must be a convoy.Infeed, got {type(infeed).__name__}")
        self.schedule = check_options(options, stages, outfeed)
        self.nodes = make_nodes(stages, options, self.schedule)
        self.options = options
        self.infeed = infeed
        self.outfeed = outfeed
        self.updates = 0  # so far
        devices = 1 + max(node.device for nodes in self.nodes for node in nodes)
        self.layout = join(devices, options.replicas)
        self._program: _Program | None = None
        self._assign_feeds()

    def __call__(self, *inputs: Any) -> None:
        arguments = tuple(as_element(value) for value in inputs)
        for index, value in enumerate(arguments):
            if not isinstance(value, Tensor):
                raise TypeError(f"argument {index} of the pipeline must be a tensor")
        bundle = tuple(value for value in arguments if isinstance(value, Tensor))
        self._check_inputs(bundle)
        with _gradient_mode(self.options), torch.random.fork_rng():
            if self._program is None:
                self._program = _Program(self, bundle)
            program = self._program
            repeat(self.options.repeat_count, lambda: self._run(program, bundle))

    def _check_inputs(self, inputs: Bundle) -> None:
        """The number, shapes and dtypes of the arguments are the same in all calls."""
        if self._program is None:
            return
        given, first = describe_structure(inputs), describe_structure(self._program.inputs)
        if given != first:
            raise TypeError(f"the pipeline was called with {first} before, and now with {given}")

    def _run(self, program: "_Program", inputs: Bundle) -> None:
        program.run(self.updates, inputs)
        self.updates += 1

    def draw(self, width: int = 100) -> str:
        """The timetable of one update as text: a row per stage, concurrent stages one by one."""
        assert self.options.gradient_accumulation is not None
        table = make_timetable(self.schedule, len(self.nodes), self.options.gradient_accumulation)
        if not self.options.trains:
            table = _forward_only(table)
        rows = [table.rows[index] for index, nodes in enumerate(self.nodes) for _ in nodes]
        labels = tuple(node.name for nodes in self.nodes for node in nodes)
        return "\n".join(draw_timetable(replace(table, rows=tuple(rows), row_labels=labels), width))

    def sync_modules(self) -> None:
        """Copy parameters and buffers from the process that trains them to all processes of the
        replica, for example before a checkpoint. All processes must call this."""
        if self.layout.group is None or self._program is None:
            return
        for node in chain.from_iterable(self.nodes):
            for tensor in self._program.trace.stages[node.index].used[node.branch]:
                dist.broadcast(tensor.data, group=self.layout.group, group_src=node.device)

    def _assign_feeds(self) -> None:
        layout, count = self.layout, self.options.gradient_accumulation
        assert count is not None
        if self.infeed is not None and not self.infeed.is_share_given:
            self.infeed.assign(InfeedShare(layout.replica, layout.replicas, count))
        if self.outfeed is not None:
            last = self.nodes[-1][0].device
            self.outfeed.connect(
                layout.make_gatherer(last), is_source=layout.has(self.nodes[-1][0])
            )


@contextmanager
def _gradient_mode(options: PipelineOptions) -> Iterator[None]:
    """Training needs gradients, also where the caller has disabled them."""
    if not options.trains:
        yield
        return
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _forward_only(table: Timetable) -> Timetable:
    """The forward passes of a timetable, without the columns of the backward passes."""
    rows = [
        [tuple(action for action in cell if isinstance(action, Forward)) for cell in row]
        for row in table.rows
    ]
    used = 1 + max(column for row in rows for column, cell in enumerate(row) if cell)
    return replace(table, rows=tuple(tuple(row[:used]) for row in rows))


@dataclass
class _Results:
    """Enqueues what the options choose of the outputs of the last stage."""

    options: PipelineOptions
    outfeed: Outfeed | None
    form: ArgumentForm
    sums: list[Tensor] = field(default_factory=list)

    def add(self, outputs: Bundle, loss: Tensor | None) -> None:
        """Add the results of a micro-batch."""
        chosen, form = self.select(outputs, loss)
        if self.outfeed is None:
            return
        if not self.options.accumulate_outfeed:
            self.outfeed.put(unflatten(chosen, form))
        elif self.sums:
            for total, value in zip(self.sums, chosen, strict=True):
                total.add_(value.detach())
        else:
            self.sums = [value.detach().to(self.sum_dtype(value), copy=True) for value in chosen]

    def sum_dtype(self, output: Tensor) -> torch.dtype:
        """The dtype of the sum of outputs like this one."""
        choice = self.options.accumulate_outfeed_dtype
        if choice is None and not (output.is_floating_point() or output.is_complex()):
            return torch.int64  # as torch.sum; a sum of uint8 or bool would overflow
        return choose_dtype("accumulate_outfeed_dtype", choice, output)

    def select(self, outputs: Bundle, loss: Tensor | None) -> tuple[Bundle, ArgumentForm]:
        if self.options.outfeed_loss:
            assert loss is not None
            return (loss,), ArgumentForm(1)
        mask = self.options.outfeed_mask
        if mask is None:
            return outputs, self.form
        chosen = tuple(value for value, masked in zip(outputs, mask, strict=True) if not masked)
        names = [None] * self.form.positional + list(self.form.keywords)
        kept = [name for name, masked in zip(names, mask, strict=True) if not masked]
        keywords = tuple(name for name in kept if name is not None)
        return chosen, ArgumentForm(len(kept) - len(keywords), keywords)

    def finish(self, outputs: Bundle) -> None:
        """Enqueue the sums of an update; `outputs` are those of any micro-batch."""
        if self.outfeed is not None and self.options.accumulate_outfeed:
            form = self.select(outputs, torch.zeros(()))[1]
            self.outfeed.put(unflatten(tuple(self.sums), form))
            self.sums = []


class _CustomObjective:
    """The user's loss; results go to the outfeed as soon as they exist."""

    def __init__(self, options: PipelineOptions, results: _Results) -> None:
        self.options = options
        self.results = results

    def first_inputs(self, micro_batch: Bundle) -> Bundle:
        return micro_batch

    def evaluate(self, outputs: Bundle, micro_batch: Bundle) -> tuple[Tensor, Bundle]:
        del micro_batch
        loss = compute_loss(self.options, outputs, self.results.form)
        self.results.add(outputs, loss)
        return loss, outputs


def compute_loss(options: PipelineOptions, outputs: Bundle, form: ArgumentForm) -> Tensor:
    assert options.loss_fn is not None
    loss = form.call(options.loss_fn, outputs)
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must return a tensor, got {type(loss).__name__}")
    if loss.numel() != 1 or not loss.is_floating_point():
        raise ValueError(
            "loss_fn must return a scalar floating-point tensor, got "
            f"{tuple(loss.shape)} {loss.dtype}"
        )
    return loss.reshape(())


class _Program:
    """The stages of this process, built when the first inputs are known."""

    def __init__(self, pipeline: Pipeline, inputs: Bundle) -> None:
        self.options, self.infeed = pipeline.options, pipeline.infeed
        self.layout, self.inputs = pipeline.layout, inputs
        count = self.options.gradient_accumulation
        assert count is not None
        self.count = count
        trained = _trained_parameters(self.options)
        self.device: torch.device | None = None  # of the first stage; known after the trace
        arguments = self._first_arguments(inputs, peek=True)
        self.trace = trace_stages(pipeline.nodes, arguments, trained)
        self.device = device_of(pipeline.nodes[0][0], self.trace)
        _check_owners(self.trace, pipeline.nodes, trained)
        outfeed = pipeline.outfeed
        self.example_loss = _check_last_outputs(self.options, outfeed, self.trace)
        outputs = tuple(output.detach() for output in self.trace.last_outputs)
        self.trace = replace(self.trace, last_outputs=outputs)  # without the graph
        self.local = [node for node in chain.from_iterable(pipeline.nodes) if self.layout.has(node)]
        self._broadcast_from_first_replica()
        self.modules = [self._make_module(node) for node in self.local]
        self.results = _Results(self.options, outfeed, self.trace.output_form)
        self.has_first = any(node.index == 0 for node in self.local)
        self.has_last = any(node.index == len(pipeline.nodes) - 1 for node in self.local)
        self.channels = connect_nodes(pipeline.nodes, self.trace, self.layout)
        self.step = self._make_step() if self.options.trains else None
        self.run_micro_batches = (
            self._training(pipeline) if self.options.trains else self._inference()
        )

    def run(self, update: int, inputs: Bundle) -> None:
        """Run one update, or the micro-batches of one without an optimizer."""
        first = (update * self.layout.replicas + self.layout.replica) * self.count
        for module in self.modules:
            module.start_update(update, first)
        self.run_micro_batches(inputs)
        if self.step is not None:
            self.step.apply()
        if self.has_last:
            self.results.finish(self.trace.last_outputs)
        else:
            self._enqueue_placeholders()

    def _training(self, pipeline: Pipeline) -> Any:
        assert self.step is not None
        stages = [
            TrainingStage(
                module,
                self.channels[module.node],
                self._collector(index),
                pipeline.schedule,
                self.count,
            )
            for index, module in enumerate(self.modules)
        ]
        executor = PipelineExecutor(stages, _CustomObjective(self.options, self.results))
        return lambda inputs: executor.run(self._micro_batches(inputs))

    def _collector(self, group: int) -> Any:
        assert self.step is not None
        step = self.step
        return lambda: step.collect(group)

    def _inference(self) -> Any:
        channels = [self.channels[node] for node in self.local]
        pipeline = InferencePipeline(self.modules, channels)

        def run(inputs: Bundle) -> None:
            for outputs in pipeline.run_bundles(self._micro_batches(inputs)):
                if outputs is not None:
                    self.results.add(outputs, None)

        return run

    def _micro_batches(self, inputs: Bundle) -> Iterator[Bundle]:
        """The arguments of the first stage; nothing in a process without it."""
        for _ in range(self.count):
            if not self.has_first:
                if self.infeed is not None:
                    self.infeed.skip()
                yield ()
                continue
            bundle, _ = self._first_arguments(inputs)
            yield bundle

    def _first_arguments(self, inputs: Bundle, peek: bool = False) -> tuple[Bundle, ArgumentForm]:
        """The arguments of the call, then the next element of the infeed."""
        bundle, form = inputs, ArgumentForm(len(inputs))
        if self.infeed is not None:
            element = self.infeed.peek() if peek else self.infeed.next()
            fed, fed_form = flatten(element, "the infeed")
            bundle, form = (*bundle, *fed), form + fed_form
        return bundle if self.device is None else to_device(bundle, self.device), form

    def _make_module(self, node: StageNode) -> StageModule:
        segments: list[range] = []
        if self.options.recompute is not None and self.options.trains:
            segments = recomputed_segments(node.function, self.options.recompute_checkpoints)
        module = StageModule(node, self.trace.stages[node.index], segments)
        if self.options.offload_activations:
            module.context = ActivationOffload().active
        return module

    def _make_step(self) -> GradientStep:
        assert self.options.optimizer is not None
        trained = _trained_parameters(self.options)
        groups = _group_parameters(self.trace, self.local, trained)
        layout, options = self.layout, self.options.step_options
        return GradientStep(self.options.optimizer, groups, layout, options)

    def _broadcast_from_first_replica(self) -> None:
        """All replicas start with the weights of the first one."""
        for node in self.local if self.layout.peers is not None else ():
            for tensor in self.trace.stages[node.index].used[node.branch]:
                dist.broadcast(tensor.data, group=self.layout.peers, group_src=0)

    def _enqueue_placeholders(self) -> None:
        """Count the results of the last stage, which is in another process."""
        outfeed = self.results.outfeed
        if outfeed is None:
            return
        outputs = self.trace.last_outputs
        chosen, form = self.results.select(outputs, self.example_loss)
        if self.options.accumulate_outfeed:
            chosen = tuple(value.to(self.results.sum_dtype(value)) for value in chosen)
        for _ in range(1 if self.options.accumulate_outfeed else self.count):
            outfeed.put(unflatten(chosen, form))


def _trained_parameters(options: PipelineOptions) -> list[nn.Parameter]:
    if options.optimizer is None:
        return []
    groups = options.optimizer.param_groups
    return [item for group in groups for item in group["params"] if item.requires_grad]


def _check_last_outputs(
    options: PipelineOptions, outfeed: Outfeed | None, trace: PipelineTrace
) -> Tensor | None:
    """Check the loss, and that results have a place to go; return the loss, if there is one."""
    outputs, form = trace.last_outputs, trace.output_form
    if outputs and outfeed is None and not options.trains:
        raise ValueError("the last stage returns tensors; an outfeed is needed to receive them")
    if options.outfeed_mask is not None and len(options.outfeed_mask) != len(outputs):
        raise ValueError(
            f"outfeed_mask has {len(options.outfeed_mask)} entries, but the last stage returns "
            f"{len(outputs)} tensors"
        )
    if not options.trains:
        return None
    with torch.enable_grad():
        loss = compute_loss(options, outputs, form)
    if not loss.requires_grad:
        raise ValueError("the loss does not depend on any parameter of the optimizer")
    return loss.detach()


def _check_owners(
    trace: PipelineTrace, nodes: Sequence[Sequence[StageNode]], trained: Sequence[nn.Parameter]
) -> None:
    """Stages that share a parameter or buffer are on one device, and each parameter is used."""
    users: dict[Tensor, StageNode] = {}
    for stage, branches in zip(trace.stages, nodes, strict=True):
        for node, used in zip(branches, stage.used, strict=True):
            for tensor in used:
                _check_sharing(tensor, users.setdefault(tensor, node), node)
    unused = [parameter for parameter in trained if parameter not in users]
    if unused:
        raise ValueError(
            f"the optimizer has {len(unused)} parameters that no stage uses, the first one of "
            f"shape {tuple(unused[0].shape)}; remove them from the optimizer"
        )


def _check_sharing(tensor: Tensor, first: StageNode, second: StageNode) -> None:
    if first.device == second.device:
        return
    solution = "assign both to the same device in device_mapping"
    if first.index == second.index:
        solution = "concurrent stages need separate parameters"
    raise ValueError(
        f"{first.name} and {second.name} share a parameter or buffer of shape "
        f"{tuple(tensor.shape)}, but are on the devices {first.device} and {second.device}; "
        f"{solution}"
    )


def _group_parameters(
    trace: PipelineTrace, local: Sequence[StageNode], trained: Sequence[nn.Parameter]
) -> list[list[nn.Parameter]]:
    """The parameters of each stage; a shared one belongs to the first stage that uses it.

    Its backward pass is the last one, so the gradient is complete then.
    """
    left = dict.fromkeys(trained)
    groups = []
    for node in local:
        used = set(trace.stages[node.index].used[node.branch])
        groups.append([parameter for parameter in left if parameter in used])
        left = {parameter: None for parameter in left if parameter not in used}
    return groups
