"""What was found when everything was read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from convoy.data.records.ledger import BadRecord
from convoy.data.source import Split
from convoy.errors import ConvoyError


@dataclass
class SplitReport:
    """One split: how much was read, and all that is wrong with it."""

    split: Split
    form: str
    files: int = 0
    records: int = 0
    bytes: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of files, or of all of them together

    @property
    def is_good(self) -> bool:
        return not self.bad and not self.problems

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What goes wrong inside is one more fault, and the rest goes on."""
        try:
            yield
        except ConvoyError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Every fault, then the sum."""
        verdict = "all good" if self.is_good else self._verdict()
        return [
            *self.problems,
            *map(str, self.bad),
            f"{self.split}: {self.records:,} records in {self.files:,} files, "
            f"{self.bytes / 1e6:,.1f} MB: {verdict}",
        ]

    def _verdict(self) -> str:
        bad, problems = len(self.bad), len(self.problems)
        parts = [f"{bad:,} bad record{'s' * (bad != 1)}"] if bad else []
        parts += [f"{problems:,} other fault{'s' * (problems != 1)}"] if problems else []
        return " and ".join(parts)
