"""The copies of one stage, as partners in conversation: tensors to and from each of them.

Messages between two replicas arrive in the order they were posted, and go straight from tensor to
tensor. For two replicas and 25 million elements on a busy machine, gloo's all_to_all and all_gather
with the copies they need were slower at every size of buffer that was tried (1 to 100 MB).
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

Message = tuple[int, Tensor]  # the replica it goes to or comes from, and what


class Pending:
    """Messages under way."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """Until all have arrived; what was sent may be changed afterwards."""
        for work in self._works:
            work.wait()
        self._works = []


class Peers:
    """A process group of replicas; `replica` is this process's place in it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.replica = group.rank()
        self.replicas = group.size()
        self.ranks = dist.get_process_group_ranks(group)
        self.others = [one for one in range(self.replicas) if one != self.replica]

    def exchange(
        self, sent: Iterable[Message], received: Iterable[Message], subject: int = 0
    ) -> Pending:
        """Post messages; empty ones are left out on both sides.

        Messages of another subject are never mistaken for these, whenever they are posted.
        """
        posted = [(dist.isend, *one) for one in sent] + [(dist.irecv, *one) for one in received]
        wanted = [
            dist.P2POp(call, tensor, group=self.group, tag=subject, group_peer=peer)
            for call, peer, tensor in posted
            if tensor.numel()
        ]
        return Pending(dist.batch_isend_irecv(wanted) if wanted else [])

    def gather(self, part: Tensor) -> Tensor:
        """Every replica's tensor of this shape, stacked in the order of the replicas."""
        own = part.contiguous()
        stacked = torch.empty((self.replicas, *part.shape), dtype=part.dtype, device=part.device)
        sent = [(peer, own) for peer in self.others]
        pending = self.exchange(sent, [(peer, stacked[peer]) for peer in self.others])
        stacked[self.replica] = own
        pending.wait()
        return stacked

    def add_up(self, vector: Tensor) -> Pending:
        """Begin to replace a vector by the sum over all replicas, in torch's order of adding."""
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        return Pending([] if work is None else [work])
