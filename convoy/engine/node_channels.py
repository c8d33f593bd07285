"""Where the stages of `pipeline` run, and the channels between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.engine.custom_stages import PipelineTrace, StageNode
from convoy.engine.outfeed import ResultGatherer
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
    """This process among the processes of a pipeline and its replicas; by default the only one."""

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

    def make_gatherer(self, source: int) -> ResultGatherer | None:
        """Sends the results of process `source` of each replica to all; None in one process."""
        if self.group is None and self.peers is None:
            return None
        is_source = self.group is None or self.index == source
        return ResultGatherer(self.peers, self.replicas, self.group, source, is_source)


# (processes of a replica, replicas or None) → this process
JoinProcesses = Callable[[int, int | None], ProcessLayout]


def device_of(node: StageNode, trace: PipelineTrace) -> torch.device:
    """The device of the weights of a stage; a stage without weights runs on the CPU."""
    used = trace.stages[node.index].used[node.branch]
    return next((tensor.device for tensor in used), torch.device("cpu"))


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
                ends = _link(
                    _End(upstream, device_of(upstream, trace), activations),
                    _End(downstream, device_of(downstream, trace), gradients),
                    layout,
                    next(tags),
                )
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
    local_outputs = range(first, first + counts[node.branch])
    return tuple(i - first for i in following.inputs_with_gradients if i in local_outputs)


class _End(NamedTuple):
    """One end of a channel."""

    node: StageNode
    device: torch.device
    sends: Sequence[TensorSpec]


def _link(
    upstream: _End, downstream: _End, layout: ProcessLayout, tag: int
) -> tuple[StageChannel, StageChannel]:
    """Both ends of a channel; of a channel between processes, the end in this one, twice."""
    if layout.processes == 1 or upstream.node.device == downstream.node.device:
        return local_pair(upstream.device, downstream.device)
    here, peer = upstream, downstream
    if layout.has(downstream.node):
        here, peer = downstream, upstream
    assert layout.group is not None, "several processes have a process group"
    index = peer.node.device
    channel = P2PChannel(here.sends, peer.sends, here.device, layout.group, index, tag)
    return channel, channel


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
