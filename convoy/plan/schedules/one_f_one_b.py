"""Grouped, interleaved (1F1B) and sequential: the order of forwards and backwards on each stage, as
data.

The class is also the interface that all schedules have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.errors import ConfigError
from convoy.plan.schedules.actions import Action, Backward, Forward, Row, paired


@dataclass(frozen=True)
class Schedule:
    """An order of work. One number tells the three apart: how many micro-batches are in flight.

    A micro-batch passes 2S slots: forward on stage 0 … S−1, then backward on S−1 … 0. A new one
    enters whenever the slots are free for it, every 2S / in-flight columns of the timetable:

                    in flight   a column is                 enters every    waiting at stage s
    grouped         2S          a time step: an F and a B   column          2(S−1−s)
    interleaved     S           a half-step: an F or a B    second column   S−1−s
    sequential      1           a slot: one device works    2S columns      0

    One stage is no pipeline: nothing runs beside it, so all three go F0 B0 F1 B1 … with any count.
    """

    name: str
    unit: str  # what one column of the timetable is
    in_flight_per_stage: int  # 0: one micro-batch in all
    shares_devices: bool = True  # two stages may train on one device
    splits_backward: bool = False  # gradients of weights in a pass of their own
    stages_per_process: int = 1
    any_count: bool = False  # no rule but that the micro-batches fill the pipeline once

    @property
    def allows_recompute(self) -> bool:
        """Whether a backward pass may compute its forward again: each part would do so anew."""
        return not self.splits_backward

    def stages_on(self, processes: int) -> int:
        """The length of a line over so many processes."""
        return processes * self.stages_per_process

    def in_flight(self, stages: int, *, training: bool = True) -> int:
        """Micro-batches on their way at the same time."""
        most = 2 if training else 1  # without backwards there are only S slots to be in
        per_stage = min(self.in_flight_per_stage, most) if stages > 1 else 0
        return max(1, per_stage * stages)

    def spacing(self, stages: int, *, training: bool = True) -> int:
        """Columns from the start of one micro-batch to the start of the next."""
        return slots(stages, training=training) // self.in_flight(stages, training=training)

    def actions(
        self, stage: int, stages: int, micro_batches: int, *, training: bool = True
    ) -> list[Action]:
        """Run ahead just far enough, then pair each forward with the oldest backward."""
        if not training:
            return [Forward(micro) for micro in range(micro_batches)]
        micros = range(micro_batches)
        ahead = self.peak_stash(stage, stages, micro_batches) - 1
        return paired([*map(Forward, micros)], [*map(Backward, micros)], ahead)

    def orders(self, stages: int, micro_batches: int, *, training: bool = True) -> list[Row]:
        """What each process does, in order; here a process is a stage."""
        return [
            self.actions(stage, stages, micro_batches, training=training) for stage in range(stages)
        ]

    def columns(self, stages: int, micro_batches: int, *, training: bool = True) -> list[list[int]]:
        """Where in the timetable each action of `orders` stands."""
        spacing = self.spacing(stages, training=training)
        rows = self.orders(stages, micro_batches, training=training)
        return [
            [spacing * action.micro + slot(action, stage, stages) for action in row]
            for stage, row in enumerate(rows)
        ]

    def waiting(self, stage: int, stages: int) -> int:
        """Micro-batches queued between the forward and the backward of a stage at full flow."""
        return self.stash(stage, stages) - 1

    def stash(self, stage: int, stages: int) -> int:
        """Activation sets from earlier columns, just before a backward at full flow."""
        return -(-_gap(stage, stages) // self.spacing(stages))

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        """Activation sets a process really holds at most: what memory must be planned for.

        Grouped holds one more than `stash`: in each step its forward comes before its backward.
        """
        return min(_gap(stage, stages) // self.spacing(stages) + 1, micro_batches)

    def process_stash(self, process: int, stages: int, micro_batches: int) -> int:
        """The same for a process: all its stages together."""
        return self.peak_stash(process, stages, micro_batches)

    def unanswered(self, stage: int, stages: int, micro_batches: int) -> int:
        """Micro-batches a stage has sent onward, at most, before the gradient of the first."""
        return self.peak_stash(stage, stages, micro_batches)

    def length(self, stages: int, micro_batches: int, *, training: bool = True) -> int:
        """Columns of the timetable of one update."""
        return 1 + max(max(row) for row in self.columns(stages, micro_batches, training=training))

    def ramp_share(self, stages: int, micro_batches: int, *, training: bool = True) -> float:
        """The share of the time in which a device is idle, if all actions cost the same."""
        two_in_a_column = training and stages > 1 and self.in_flight_per_stage == 2
        whole = self.length(stages, micro_batches, training=training) * (1 + two_in_a_column)
        busy = len(self.orders(stages, micro_batches, training=training)[0])
        return (whole - busy) / whole

    def check_count(self, stages: int, micro_batches: int) -> None:
        """Refuse a count that would not fill the pipeline; it is a rule of training only."""
        if self.any_count:
            check_least(f"{self.name.capitalize()} with {stages} stages", stages, micro_batches)
            return
        check_multiple(
            f"{self.name.capitalize()} with {stages} stages", self.in_flight(stages), micro_batches
        )

    def check_devices(self, devices: Sequence[int]) -> None:
        """Refuse a device that would have to train two stages in alternation."""
        shared = sorted({device for device in devices if devices.count(device) > 1})
        if shared and not self.shares_devices:
            raise ConfigError(
                f"{self.name.capitalize()} trains one stage on a device, but --device-mapping "
                f"gives device {', '.join(map(str, shared))} more than one; name {len(devices)} "
                "different devices, or use --pipeline-schedule grouped or sequential"
            )


def check_least(who: str, least: int, micro_batches: int) -> None:
    """Refuse a count that does not fill the pipeline once."""
    if micro_batches < least:
        raise ConfigError(
            f"{who} needs --gradient-accumulation to be at least {least}, got {micro_batches}; "
            f"use {least}"
        )


def check_multiple(who: str, multiple: int, micro_batches: int) -> None:
    """Refuse a count that is none, with the nearest that are."""
    if micro_batches >= multiple and micro_batches % multiple == 0:
        return
    below = micro_batches // multiple * multiple
    allowed = [str(count) for count in (below, below + multiple) if count > 0]
    raise ConfigError(
        f"{who} needs --gradient-accumulation to be a multiple of {multiple} and at least "
        f"{multiple}, got {micro_batches}; use {' or '.join(allowed)}"
    )


def slots(stages: int, *, training: bool = True) -> int:
    """Passes that one micro-batch needs, one after the other."""
    return 2 * stages if training else stages


def slot(action: Action, stage: int, stages: int) -> int:
    """The place of an action among the slots of its micro-batch."""
    return stage if isinstance(action, Forward) else 2 * stages - 1 - stage


def _gap(stage: int, stages: int) -> int:
    """Columns from a micro-batch's forward on a stage to its backward there."""
    return slot(Backward(0), stage, stages) - slot(Forward(0), stage, stages)
