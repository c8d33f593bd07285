"""Threads that write the parts. Reading, hashing and writing let each other run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from threading import Event

from convoy.data.convert.beside import Named
from convoy.data.convert.budget import Budget
from convoy.data.convert.journal import Done, Journal, LeftOut
from convoy.data.convert.parts import Part
from convoy.data.convert.source import Source
from convoy.data.convert.wish import Wish
from convoy.data.convert.writing import write_part
from convoy.data.hearing import Tally
from convoy.data.records.indexing import Progress
from convoy.data.records.record import MAX_RECORD_BYTES, BadRecordError
from convoy.data.records.sample import Sample
from convoy.data.source import Split
from convoy.data.whole_files import measure
from convoy.errors import DataError

_AROUND = 2**16  # what a record may have beside its image


class _GivenUpError(Exception):
    """A part that is not to be written: all has ended elsewhere, or nothing of it is good."""


class Crew:
    """One conversion's threads."""

    def __init__(
        self, wish: Wish, source: Source, names: Named, journal: Journal, budget: Budget
    ) -> None:
        self._wish = wish
        self._source = source
        self._names = names
        self._journal = journal
        self._budget = budget
        self._stop = Event()

    def work(self, parts: Sequence[Part], progress: Progress) -> Mapping[Split, list[Done]]:
        """Write all parts that are not there yet; DataError at the end for bad records."""
        tally = Tally(sum(len(part.numbers) for part in parts), progress)
        done: dict[str, Done] = {}
        pool = ThreadPoolExecutor(self._wish.workers)
        try:
            waiting = [pool.submit(self._fulfil, part, tally) for part in parts]
            for future in as_completed(waiting):
                one = future.result()
                if one is not None:
                    done[one.name] = one
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        self._budget.refuse_any()
        return {
            split: [done[part.name] for part in parts if part.split == split]
            for split in self._source.splits
        }

    def _fulfil(self, part: Part, tally: Tally) -> Done | None:
        """None for a part that was given up."""
        known = self._journal.done.get(part.name)
        if known is not None and measure(self._wish.target / part.name) == known.measured:
            for bad in known.left_out:
                self._budget.leave_out(part.split, bad)
            tally.add(len(part.numbers))
            return known
        try:
            return self._write(part, tally)
        except _GivenUpError:
            return None

    def _write(self, part: Part, tally: Tally) -> Done:
        left_out: list[LeftOut] = []
        samples = self._samples(part, left_out, tally)
        records = write_part(self._wish.target, self._wish.form, part, samples)
        measured = measure(self._wish.target / part.name)
        assert measured is not None, "it was written a moment ago"
        done = Done(part.name, records, measured, tuple(left_out))
        self._journal.add(done)
        return done

    def _samples(self, part: Part, left_out: list[LeftOut], tally: Tally) -> Iterator[Sample]:
        """All of a part but its bad ones, which are noted."""
        names = self._names[part.split][1] if self._names else None
        for place, number in enumerate(part.numbers.tolist(), start=part.first):
            if self._stop.is_set():
                raise _GivenUpError
            try:
                sample = self._sample(part.split, number)
            except BadRecordError as error:
                left_out.append(LeftOut(number, str(error)))
                self._budget.leave_out(part.split, left_out[-1])
            else:
                yield sample if names is None else replace(sample, filename=names[place])
            tally.add(1)
        if left_out and len(left_out) == len(part.numbers) and self._wish.form != "folder":
            if self._wish.most_bad is None:
                raise _GivenUpError
            raise DataError(
                f"{part.name} would be empty: all of its {len(left_out)} records are bad; make "
                "larger shards"
            )

    def _sample(self, split: Split, number: int) -> Sample:
        sample = self._source.sample(split, number)
        if len(sample.encoded) > MAX_RECORD_BYTES - _AROUND and self._wish.form == "tfrecord":
            raise BadRecordError(
                self._source.splits[split].spot(number),
                f"{len(sample.encoded)} bytes, too many for a TFRecord",
            )
        return sample
