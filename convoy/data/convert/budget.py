"""Bad records of the source: none may be there, or so many may be left out."""

from threading import Lock

import numpy as np

from convoy.data.convert.journal import LeftOut
from convoy.data.convert.source import Source
from convoy.data.records.record import UNKNOWN, BadRecordError
from convoy.data.source import Split
from convoy.errors import DataError

_SHOWN = 100  # that an error lists; `convoy data verify` lists all


class Budget:
    """Counts them, each once, from any thread."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._found: dict[tuple[Split, int], str] = {}
        self._lock = Lock()

    def left_out(self, split: Split) -> list[str]:
        """In the order of the source."""
        return [self._found[key] for key in sorted(self._found) if key[0] == split]

    def leave_out(self, split: Split, bad: LeftOut) -> None:
        """DataError when this one is too many; without a budget all are gathered first."""
        with self._lock:
            self._found[split, bad.number] = bad.says
            if self._most is not None and len(self._found) > self._most:
                raise DataError(f"{self._count()}, --max-bad-records allows {self._most}:\n{self}")

    def leave_out_known(self, source: Source) -> None:
        """Those that were found when the shards were indexed."""
        for split, records in source.splits.items():
            for number in np.flatnonzero(records.labels == UNKNOWN).tolist():
                try:
                    records.read(number)
                except BadRecordError as error:
                    self.leave_out(split, LeftOut(number, str(error)))
        self.refuse_any()

    def refuse_any(self) -> None:
        if self._found and self._most is None:
            raise DataError(
                f"{self._count()} in the source; --bad-records skip leaves them out:\n{self}"
            )

    def _count(self) -> str:
        count = len(self._found)
        return f"{count} bad record{'s' * (count != 1)}"

    def __str__(self) -> str:
        lines = [f"  {self._found[key]}" for key in sorted(self._found)]
        more = len(lines) - _SHOWN
        return "\n".join([*lines[:_SHOWN], *([f"  and {more} more"] if more > 0 else [])])
