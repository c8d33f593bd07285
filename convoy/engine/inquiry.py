"""What made an update stop: all processes pass its micro-batches once more and compare notes."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from convoy.data.feed import Hands, SyntheticFeed, TrainingFeed
from convoy.data.order import Place
from convoy.engine.part import Part
from convoy.engine.targets import targets_of
from convoy.engine.verdict import Judge
from convoy.numerics.traps import NOTHING, ROWS, Note, Phase
from convoy.optim.step import Step
from convoy.parallel.council import Matter
from convoy.parallel.pipeline import MicroBatch

Again = Callable[[Iterable[MicroBatch], Step], None]
_ALONE = Hands(workers=0, depth=1)  # whoever prepares batches ahead is busy with others


@dataclass(frozen=True)
class Finding:
    """What was the first value that is not finite."""

    text: str
    forward: bool = False  # it arose before the loss


class Inquiry:
    """Nothing has changed since, and data and chance are functions of the place: the same values
    come again.
    """

    def __init__(
        self, judge: Judge, again: Again, feed: TrainingFeed | SyntheticFeed, part: Part
    ) -> None:
        self.judge = judge
        self.again = again
        self.feed = feed
        self.part = part

    def hold(self, at: Step) -> Finding:
        """What was the first value that is not finite. All processes must ask."""
        traps = self.judge.traps
        if traps is None:
            return Finding(
                "its gradients are not finite; without --compile the first layer would be named"
            )
        if not self.judge.policy.watches:  # else the notes are taken already
            self._pass_again(at)
        own = NOTHING if traps.first is None else traps.first.as_tensor()
        gathered = self.part.council.gather(Matter.VERDICT, at.update, own)
        notes = [
            (note, rank) for rank, one in enumerate(gathered) if (note := Note.from_tensor(one))
        ]
        if not notes:
            return Finding(
                "its gradients are not finite, though those of every micro-batch are: they are too "
                "large for --accumulator-dtype; use a wider one"
            )
        note, rank = min(notes, key=lambda one: one[0].place)
        told = self._told(note, traps.names, at.update)
        text = f"{told}, on rank {rank}{self._standing(rank)}"
        return Finding(text, forward=note.phase is Phase.FORWARD)

    def _pass_again(self, at: Step) -> None:
        places = [Place(at.update, micro) for micro in self.part.micros]
        with closing(self.feed.micro_batches(places, _ALONE)) as feed:
            self.again(((one.images, targets_of(one)) for one in feed), at)

    def _told(self, note: Note, names: Sequence[str], update: int) -> str:
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
        ids = list(note.rows)
        if isinstance(self.feed, TrainingFeed):
            ids = self.feed.order.ids(Place(update, note.micro))[ids].tolist()
        more = f" and {note.bad_rows - ROWS} more" if note.bad_rows > ROWS else ""
        return f"sample{'s' * (note.bad_rows > 1)} {', '.join(map(str, ids))}{more}"

    def _standing(self, rank: int) -> str:
        return f" ({self.part.places[rank]})" if self.part.places else ""
