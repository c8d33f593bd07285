"""The non-finite search: where the first value of a failed update that is not finite arose.

All processes pass the micro-batches of the update once more and compare notes. Nothing has changed
since, and data and randomness are functions of the position: the same values come again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from convoy.engine.micro_batches import MicroBatches
from convoy.engine.step_guard import StepGuard
from convoy.errors import NotFiniteError
from convoy.numerics.traps import NOTHING, ROWS, Note, Phase, Traps
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import SyncPoint
from convoy.parallel.executor import MicroBatch

Repeat = Callable[[Iterable[MicroBatch], StepContext], None]


@dataclass(frozen=True)
class NonFiniteSource:
    """Where the first value that is not finite arose."""

    text: str
    forward: bool = False  # before the loss


class NonFiniteSearch:
    """Repeats an update that changed nothing, with a trap at every layer."""

    def __init__(self, guard: StepGuard, repeat: Repeat, micro_batches: MicroBatches) -> None:
        self.guard = guard
        self.repeat = repeat
        self.micro_batches = micro_batches
        self.share = micro_batches.share

    def error(self, context: StepContext) -> NotFiniteError:
        """The error that ends the run, the same on all processes. All of them must call it."""
        guard, source = self.guard, self.run(context)
        before = f"{guard.in_a_row} updates before it were skipped; " if guard.in_a_row else ""
        is_chosen = guard.policy.skip or guard.policy.watch_layers
        way = "" if is_chosen else ", or go on with --on-nonfinite skip"
        lower = f"--lr (now {context.rate:g})"
        if context.scale > 1 and not source.forward:
            lower = f"--loss-scaling (now {context.scale:,.10g})"
        return NotFiniteError(
            f"update {context.update + 1}: {source.text}; {before}it changed nothing, and the "
            f"state before it is kept; lower {lower}{way}"
        )

    def run(self, context: StepContext) -> NonFiniteSource:
        """All processes must call it."""
        traps = self.guard.traps
        if traps is None:
            return NonFiniteSource(
                "its gradients are not finite; without --compile the first layer would be named"
            )
        if not self.guard.policy.watch_layers:  # else the notes are there already
            with closing(self.micro_batches.repeated(context.update)) as batches:
                self.repeat(batches, context)
        notes = self._gathered_notes(traps, context.update)
        if not notes:
            return NonFiniteSource(
                "its gradients are not finite, though those of every micro-batch are: they are too "
                "large for --accumulator-dtype; use a wider one"
            )
        note, rank = min(notes, key=lambda pair: pair[0].place)
        where = f" ({self.share.places[rank]})" if self.share.places else ""
        text = f"{self._described(note, traps.names, context.update)}, on rank {rank}{where}"
        return NonFiniteSource(text, forward=note.phase is Phase.FORWARD)

    def _gathered_notes(self, traps: Traps, update: int) -> list[tuple[Note, int]]:
        """Each with the rank that took it."""
        own = NOTHING if traps.first is None else traps.first.as_tensor()
        gathered = self.share.control.gather(SyncPoint.VERDICT, update, own)
        notes = enumerate(map(Note.from_tensor, gathered))
        return [(note, rank) for rank, note in notes if note is not None]

    def _described(self, note: Note, names: Sequence[str], update: int) -> str:
        layer = names[note.layer]
        batch = f"micro-batch {note.micro + 1}"
        match note.phase:
            case Phase.FORWARD:
                made = f"the forward pass makes values that are not finite in layer {layer}"
            case Phase.BACKWARD:
                made = f"the backward pass comes to layer {layer} with values that are not finite"
            case Phase.WEIGHTS:
                return f"the gradient of the weights of layer {layer} is not finite in {batch}"
        return f"{made}, for {self._samples(note, update)} of {batch}"

    def _samples(self, note: Note, update: int) -> str:
        ids = self.micro_batches.sample_ids(update, note.micro, note.rows)
        more = f" and {note.bad_rows - ROWS} more" if note.bad_rows > ROWS else ""
        return f"sample{'s' * (note.bad_rows > 1)} {', '.join(map(str, ids))}{more}"
