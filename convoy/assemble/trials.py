"""Settings of a feed that could help, each measured against the present ones in turn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convoy.assemble.feeds import workers_of
from convoy.assemble.open_feed import OpenFeed, feed_of, open_feed
from convoy.config.command_line import as_flags
from convoy.config.effects import COMMAND_LINE, without_effect
from convoy.config.layers import Setting
from convoy.config.schema import RunConfig, option_table
from convoy.report.diagnosis import Trial
from convoy.report.interval import Interval, interval_of

Seconds = Callable[[OpenFeed], float]  # how long a feed takes for the same work

_MOST_WORKERS = 16
_MOST_DEPTH = 255


@dataclass(frozen=True)
class Candidate:
    """One option with another value."""

    option: str
    value: Any

    @property
    def words(self) -> str:
        """As they would be typed."""
        return " ".join(as_flags(option_table()[self.option], self.value))

    @property
    def changes_bits(self) -> bool:
        """Whether it is part of the training."""
        return not option_table()[self.option].declared.free

    @property
    def keeps_samples(self) -> bool:
        """Whether it shows only where samples come back."""
        return self.option == "dataset_cache"

    def can_help(self, config: RunConfig) -> bool:
        """Whether a run can have it, and would notice."""
        setting = {self.option: Setting(self.value, COMMAND_LINE)}
        ready = option_table()[self.option].is_ready(self.value)
        return ready and not without_effect(self.of(config), setting)

    def of(self, config: RunConfig) -> RunConfig:
        """The same run with it."""
        section = option_table()[self.option].section
        changed = replace(vars(config)[section], **{self.option: self.value})
        return replace(config, **{section: changed})


def candidates(config: RunConfig, cores: int) -> list[Candidate]:
    """What this version can do, the run does not do yet, and has an effect on it."""
    return [one for one in _thinkable(config, cores) if one.can_help(config)]


def _thinkable(config: RunConfig, cores: int) -> Iterator[Candidate]:
    data, micro = config.data, config.batch.micro_batch_size
    workers = workers_of(data)
    for count in sorted({0, 1, cores, 2 * cores, min(4 * max(workers, 1), _MOST_WORKERS)}):
        if count != workers:
            yield Candidate("dataloader_worker", count)
    if data.prefetch_depth < _MOST_DEPTH:
        yield Candidate("prefetch_depth", min(2 * data.prefetch_depth, _MOST_DEPTH))
    piece = max(1, micro // (2 * max(workers, 1)))
    if workers > 1 and piece != (data.dataloader_rebatch_size or micro):
        yield Candidate("dataloader_rebatch_size", piece)
    other = "threads" if data.dataloader_kind == "processes" else "processes"
    yield Candidate("dataloader_kind", other)
    if not data.dataset_cache:
        yield Candidate("dataset_cache", True)
    if data.normalization_location == "host" and not data.eight_bit_io:
        yield Candidate("normalization_location", "device")
    if data.normalization_location == "none" and not data.eight_bit_io:
        yield Candidate("eight_bit_io", True)
    yield Candidate("hostside_image_mixing", not config.mixing.hostside_image_mixing)


class Trials:
    """Feeds with other settings, and the present one to compare them with."""

    def __init__(self, opened: OpenFeed, seconds: Seconds, rounds: int) -> None:
        self._opened = opened
        self._seconds = seconds
        self._rounds = rounds

    def __call__(self, chosen: Sequence[Candidate]) -> tuple[Trial, ...]:
        """What seems to help is measured again, and only that counts: one of many is lucky."""
        first = dict(zip(chosen, self._compared(chosen), strict=True))
        lucky = [one for one in chosen if first[one].helps]
        again = {one: self._compared([one])[0] for one in lucky}
        return tuple((first | again).values())

    def _compared(self, chosen: Sequence[Candidate]) -> list[Trial]:
        """Round by round, so that what else the machine does meets all of them alike."""
        feeds = [self._opened, *map(self._changed, chosen)]
        spent: list[list[float]] = [[] for _ in feeds]
        for number in range(self._rounds + 1):
            # There and back again: whoever was measured late is early in the next round.
            for place in range(len(feeds))[:: -1 if number % 2 else 1]:
                spent[place].append(self._seconds(feeds[place]))
        present, *others = [times[1:] for times in spent]  # the first round is for warming up
        return [
            Trial(one.words, _ratio(present, times), one.changes_bits)
            for one, times in zip(chosen, others, strict=True)
        ]

    def _changed(self, candidate: Candidate) -> OpenFeed:
        config = candidate.of(self._opened.plan.config)
        if candidate.keeps_samples:
            return open_feed(config)
        return feed_of(config, self._opened.source, self._opened.device)


def _ratio(present: Sequence[float], others: Sequence[float]) -> Interval:
    """How many times as fast."""
    return interval_of([now / other for now, other in zip(present, others, strict=True)])
