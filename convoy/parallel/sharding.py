"""How a vector is divided over replicas, and in what portions it travels. Pure arithmetic."""

from dataclasses import dataclass

from convoy.numerics.flat import ALIGNMENT


@dataclass(frozen=True)
class Shards:
    """One consecutive range for each replica, all alike but the last ones.

    A vector too short for all leaves the last replicas with nothing, which is a range too.
    """

    elements: int
    replicas: int

    @property
    def size(self) -> int:
        """Elements of a full shard: whole cache lines."""
        return _round_up(-(-self.elements // self.replicas))

    def of(self, replica: int) -> range:
        return self._range(replica * self.size, (replica + 1) * self.size)

    def portion(self, replica: int, first: int, size: int) -> slice:
        """At most `size` elements of a replica's shard, from its element `first` on."""
        own = self.of(replica)
        start, stop = min(own.start + first, own.stop), min(own.start + first + size, own.stop)
        return slice(start, stop)

    def _range(self, start: int, stop: int) -> range:
        return range(min(start, self.elements), min(stop, self.elements))


def portion_size(shard: int, copies: int, most_bytes: int, element_bytes: int) -> int:
    """Elements of a shard that travel at once, so that `copies` of them fit `most_bytes`.

    At least one cache line each, however small the limit.
    """
    fitting = most_bytes // (copies * element_bytes) // ALIGNMENT * ALIGNMENT
    return max(ALIGNMENT, min(shard, fitting))


def _round_up(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT
