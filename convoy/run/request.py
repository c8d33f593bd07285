"""What a run is asked to do, as the verbs say it and as a worker receives it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.config.resolve import Resolved
from convoy.config.schema import option_table
from convoy.config.settings import Setting

Message = dict[str, Any]


@dataclass(frozen=True)
class RunRequest:
    """A new run, or the run in `folder` resumed."""

    resolved: Resolved
    folder: Path | None = None
    checkpoint: Path | None = None  # resume from this one instead of the newest valid one
    override: bool = False  # resume although options or data have changed
    quiet: bool = False  # print no closing lines

    def to_message(self) -> Message:
        """As JSON can carry it to a worker."""
        settings = {name: [one.value, one.source] for name, one in self.resolved.settings.items()}
        return {
            "settings": settings,
            "folder": None if self.folder is None else str(self.folder),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "override": self.override,
            "quiet": self.quiet,
        }

    @classmethod
    def from_message(cls, message: Message) -> "RunRequest":
        table = option_table()
        settings = {
            name: Setting(table[name].kind.check(value), source)
            for name, (value, source) in message["settings"].items()
        }
        folder, checkpoint = message["folder"], message["checkpoint"]
        return cls(
            Resolved.of(settings),
            None if folder is None else Path(folder),
            None if checkpoint is None else Path(checkpoint),
            message["override"],
            message["quiet"],
        )
