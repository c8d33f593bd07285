"""How fast a feed came, epoch by epoch: for people, and in the fields of the reference's tool."""

from collections.abc import Sequence
from dataclasses import dataclass

_GIGA = 1e9


@dataclass(frozen=True)
class EpochSpeed:
    """One epoch of a benchmark; an element is one micro-batch."""

    elements: int
    bytes: int
    seconds: float
    images: int

    @property
    def elements_per_second(self) -> float:
        return self.elements / self.seconds

    @property
    def bandwidth(self) -> float:
        """In GB/s."""
        return self.bytes / _GIGA / self.seconds


def speed_as_json(epoch: EpochSpeed) -> dict[str, float]:
    """The shape is stable, and all are floats."""
    return {
        "elements_processed": float(epoch.elements),
        "total_bytes_processed": float(epoch.bytes),
        "time_elapsed": epoch.seconds,
        "elements_per_second": epoch.elements_per_second,
        "bandwidth": epoch.bandwidth,
    }


def speed_line(number: int, epoch: EpochSpeed) -> str:
    """One epoch."""
    return (
        f"epoch {number}: {epoch.elements:,} elements in {epoch.seconds:.3f} s, "
        f"{epoch.elements_per_second:,.1f} elements/s, {epoch.bandwidth:.3f} GB/s"
    )


def mean_line(epochs: Sequence[EpochSpeed]) -> str:
    """All epochs, in the words that programs look for."""
    images, seconds = sum(one.images for one in epochs), sum(one.seconds for one in epochs)
    return f"mean throughput: {images / seconds:.1f} imgs/sec"
