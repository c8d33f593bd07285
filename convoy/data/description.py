"""What another process must know to prepare the same photos."""

import json
from dataclasses import asdict, dataclass

from convoy.data.source import Split

ROOM = 64  # photos that are prepared at a time


@dataclass(frozen=True)
class Description:
    """All that decides what a photo looks like."""

    folder: str
    split: Split
    size: int
    seed: int
    rule: str | None  # of the random windows; None: the middle
    use_boxes: bool

    @property
    def room_bytes(self) -> int:
        return ROOM * self.size * self.size * 3

    def as_line(self) -> str:
        return json.dumps(asdict(self))
