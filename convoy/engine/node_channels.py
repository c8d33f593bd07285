"""Where the stages of `pipeline` run, and the channels between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

import torch
import torch.distributed as dist

from convoy.engine.custom_stages import PipelineTrace, StageNode, modules_of
from convoy.engine.outfeed import ResultExchange
from convoy.parallel.channels import (
    BroadcastChannel,
    JoinChannel,
    P2PChannel,
    StageChannel,
    StageChannels,
    TensorSpec,
    local_pair,
)
from convoy.parallel.replicas import Replicas


@dataclass(frozen=True)
class ProcessLayout:
    """This process among the processes of a pipeline and its replicas. By default it is alone."""

    replica: int = 0
    replicas: int = 1
    index: int = 0  # in the replica
    processes: int = 1  # of a replica
    group: dist.ProcessGroup | None = None  # the processes of this replica
    peers: dist.ProcessGroup | None = None  # the same process of all replicas
    data_parallel: Replicas = field(default_factory=Replicas)

    def has(self, node: StageNode) -> bool:
        """Whether a stage runs in this process."""
        return self.processes == 1 or node.device == self.index

    def exchange(self, source: int) -> ResultExchange | None:
        """How all processes get the results, which are in process `source` of each replica."""
        if self.group is None and self.peers is None:
            return None
        is_source = self.group is None or self.index == source
        return ResultExchange(self.peers, self.replicas, self.group, source, is_source)


# (processes of a replica, replicas or None) → this process
JoinProcesses = Callable[[int, int | None], ProcessLayout]


def device_of(node: StageNode) -> torch.device:
    """The device of a stage's modules; a stage without weights runs where its inputs are."""
    for module in modules_of(node.function):
        for tensor in chain(module.parameters(), module.buffers()):
            return tensor.device
    return torch.device("cpu")


@dataclass
class _NodeLinks:
    """The channels of a stage to each stage before and after it."""

    upstream: list[StageChannel] = field(default_factory=list)
    downstream: list[StageChannel] = field(default_factory=list)
    sent_gradients: list[int] = field(default_factory=list)  # by stage before it


def connect_nodes(
    nodes: Sequence[Sequence[StageNode]], trace: PipelineTrace, layout: ProcessLayout
) -> dict[StageNode, StageChannels]:
    """Create the channels of all stages of this process."""
    links = {node: _NodeLinks() for node in chain.from_iterable(nodes) if layout.has(node)}
    tags = count()
    for index in range(len(nodes) - 1):
        for upstream in nodes[index]:
            activations = trace.stages[index].outputs[upstream.branch]
            gradients = tuple(activations[i] for i in _outputs_with_gradients(trace, upstream))
            for downstream in nodes[index + 1]:
                ends = _link(upstream, downstream, (activations, gradients), layout, next(tags))
                if upstream in links:
                    links[upstream].downstream.append(ends[0])
                if downstream in links:
                    links[downstream].upstream.append(ends[1])
                    links[downstream].sent_gradients.append(len(gradients))
    return {node: _stage_channels(node, nodes, trace, item) for node, item in links.items()}


def _outputs_with_gradients(trace: PipelineTrace, node: StageNode) -> tuple[int, ...]:
    """The outputs of a stage whose gradients the next stage sends."""
    following = trace.stages[node.index + 1]
    counts = [len(outputs) for outputs in trace.stages[node.index].outputs]
    first = sum(counts[: node.branch])
    own_outputs = range(first, first + counts[node.branch])
    return tuple(i - first for i in following.inputs_with_gradients if i in own_outputs)


def _link(
    upstream: StageNode,
    downstream: StageNode,
    specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    layout: ProcessLayout,
    tag: int,
) -> tuple[StageChannel, StageChannel]:
    """Both ends of a channel; of a channel between processes, the end in this one, twice."""
    activations, gradients = specs
    if layout.processes == 1 or upstream.device == downstream.device:
        return local_pair(device_of(upstream), device_of(downstream))
    is_upstream = layout.has(upstream)
    sent, received = (activations, gradients) if is_upstream else (gradients, activations)
    here, peer = (upstream, downstream) if is_upstream else (downstream, upstream)
    assert layout.group is not None, "several processes have a process group"
    end = P2PChannel(sent, received, device_of(here), layout.group, peer.device, tag)
    return end, end


def _stage_channels(
    node: StageNode,
    nodes: Sequence[Sequence[StageNode]],
    trace: PipelineTrace,
    links: _NodeLinks,
) -> StageChannels:
    is_first, is_last = node.index == 0, node.index == len(nodes) - 1
    inputs = () if is_first else trace.stages[node.index].inputs_with_gradients
    outputs = () if is_last else _outputs_with_gradients(trace, node)
    return StageChannels(
        node.index,
        len(nodes),
        None if is_first else _join(links.upstream, links.sent_gradients),
        None if is_last else _broadcast(links.downstream),
        sends_gradients=bool(inputs),
        receives_gradients=is_last or bool(outputs),
        inputs_with_gradients=inputs,
        outputs_with_gradients=outputs,
    )


def _join(channels: list[StageChannel], gradient_counts: list[int]) -> StageChannel:
    return channels[0] if len(channels) == 1 else JoinChannel(channels, gradient_counts)


def _broadcast(channels: list[StageChannel]) -> StageChannel:
    return channels[0] if len(channels) == 1 else BroadcastChannel(channels)
