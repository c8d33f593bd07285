"""Pipeline schedules by name: the order of forwards and backwards on each stage, as data.

The reference applications' "Interleaved" is what torch calls 1F1B, with a rule on the number of
micro-batches that came from their compiler; `1f1b` takes any. torch's own "Interleaved1F1B" is
`looped` here: several stages on each device. `grouped` has no counterpart in torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from convoy.errors import ConfigError
from convoy.plan.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    most_held,
    paired,
    start_times,
)
from convoy.registry import Registry

FULL = 4  # turns of P micro-batches after which nothing grows any more


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

    def in_flight(self, stages: int) -> int:
        """Micro-batches on their way at the same time."""
        return max(1, self.in_flight_per_stage * stages) if stages > 1 else 1

    def spacing(self, stages: int) -> int:
        """Columns from the start of one micro-batch to the start of the next."""
        return 2 * stages // self.in_flight(stages)

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Run ahead just far enough, then pair each forward with the oldest backward."""
        micros = range(micro_batches)
        ahead = self.peak_stash(stage, stages, micro_batches) - 1
        return paired([*map(Forward, micros)], [*map(Backward, micros)], ahead)

    def orders(self, stages: int, micro_batches: int) -> list[list[Action]]:
        """What each process does, in order; here a process is a stage."""
        return [self.actions(stage, stages, micro_batches) for stage in range(stages)]

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """Where in the timetable each action of `orders` stands."""
        spacing = self.spacing(stages)
        return [
            [
                spacing * action.micro
                + (stage if isinstance(action, Forward) else 2 * stages - 1 - stage)
                for action in row
            ]
            for stage, row in enumerate(self.orders(stages, micro_batches))
        ]

    def stash(self, stage: int, stages: int) -> int:
        """Activation sets from earlier columns, just before a backward at full flow."""
        return -(-_columns_between(stage, stages) // self.spacing(stages))

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        """Activation sets a process really holds at most: what memory must be planned for.

        Grouped holds one more than `stash`: in each step its forward comes before its backward.
        """
        return min(_columns_between(stage, stages) // self.spacing(stages) + 1, micro_batches)

    def process_stash(self, process: int, stages: int, micro_batches: int) -> int:
        """The same for a process: all its stages together."""
        return self.peak_stash(process, stages, micro_batches)

    def unanswered(self, stage: int, stages: int, micro_batches: int) -> int:
        """Micro-batches a stage has sent onward, at most, before the gradient of the first."""
        return self.peak_stash(stage, stages, micro_batches)

    def length(self, stages: int, micro_batches: int) -> int:
        """Columns of the timetable of one update."""
        return 1 + max(max(row) for row in self.columns(stages, micro_batches))

    def ramp_share(self, stages: int, micro_batches: int) -> float:
        """The share of the time in which a device is idle, if all actions cost the same."""
        two_in_a_column = stages > 1 and self.in_flight_per_stage == 2
        whole = self.length(stages, micro_batches) * (1 + two_in_a_column)
        busy = len(self.orders(stages, micro_batches)[0])
        return (whole - busy) / whole

    def check_count(self, stages: int, micro_batches: int) -> None:
        """Refuse a count that would not fill the pipeline."""
        who = f"{self.name.capitalize()} with {stages} stages"
        if not self.any_count:
            check_multiple(who, self.in_flight(stages), micro_batches)
        elif micro_batches < stages:
            raise ConfigError(
                f"{who} needs --gradient-accumulation to be at least {stages}, "
                f"got {micro_batches}; use {stages}"
            )

    def check_devices(self, devices: Sequence[int]) -> None:
        """Refuse a device that would have to train two stages in alternation."""
        shared = shared_devices(devices)
        if shared and not self.shares_devices:
            raise ConfigError(
                f"{self.name.capitalize()} trains one stage on a device, but --device-mapping "
                f"gives device {shared} more than one; name {len(devices)} "
                "different devices, or use --pipeline-schedule grouped or sequential"
            )


def _columns_between(stage: int, stages: int) -> int:
    """Columns from a micro-batch's forward on a stage to its backward there."""
    return 2 * (stages - stage) - 1


def shared_devices(devices: Sequence[int]) -> str:
    """Those that are named more than once."""
    return ", ".join(map(str, sorted({one for one in devices if devices.count(one) > 1})))


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


@lru_cache(maxsize=1)  # one plan asks several times for the same
def earliest_columns(schedule: Schedule, stages: int, micro_batches: int) -> list[list[int]]:
    """Where in the timetable the actions of a schedule stand, if each starts as early as it can."""
    starts = start_times(schedule.orders(stages, micro_batches))
    return [[round(start) for start in row] for row in starts]


@dataclass(frozen=True)
class Looped(Schedule):
    """Several stages on each process, so a micro-batch goes around all of them several times.

    Process p of P holds the stages p, p + P, p + 2P, … P micro-batches at a time take turns. Stages
    are shorter, and so are the gaps at both ends; in return more borders are crossed and more is
    kept. torch calls it Interleaved1F1B (Narayanan et al., 2021).
    """

    def processes(self, stages: int) -> int:
        return stages // self.stages_per_process

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """The part of one stage in the order of its process."""
        whole = self._order(stage % self.processes(stages), stages, micro_batches)
        return [action for action in whole if action.stage == stage]

    def orders(self, stages: int, micro_batches: int) -> list[list[Action]]:
        processes = range(self.processes(stages))
        return [self._order(process, stages, micro_batches) for process in processes]

    def _order(self, process: int, stages: int, micro_batches: int) -> list[Action]:
        """Run ahead just far enough, then pair each forward with the oldest backward."""
        processes = self.processes(stages)
        own = range(process, stages, processes)
        forwards = _turns(Forward, own, processes, micro_batches)
        backwards = _turns(Backward, own[::-1], processes, micro_batches)
        ahead = self.process_stash(process, stages, micro_batches) - 1
        return paired(forwards, backwards, ahead)

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """As early as what is needed is there."""
        return earliest_columns(self, stages, micro_batches)

    def in_flight(self, stages: int) -> int:
        """What the first stage has sent off and not yet back."""
        return self.stash(0, stages)

    def stash(self, stage: int, stages: int) -> int:
        return self.peak_stash(stage, stages, FULL * self.processes(stages))

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        return most_held(self.actions(stage, stages, micro_batches))

    def process_stash(self, process: int, stages: int, micro_batches: int) -> int:
        """A whole turn on all stages but one, and the way to the last process and back."""
        processes, rounds = self.processes(stages), self.stages_per_process
        ahead = (rounds - 1) * processes + 2 * (processes - 1 - process)
        return min(ahead + 1, rounds * micro_batches)

    def check_count(self, stages: int, micro_batches: int) -> None:
        """Stages must fill all processes, and micro-batches all turns."""
        rounds, processes = self.stages_per_process, self.processes(stages)
        if stages % rounds or processes < 2:
            below = max(2, processes) * rounds
            nearest = {below, max(2, processes + 1) * rounds}
            raise ConfigError(
                f"Looped with --stages-per-device {rounds} needs a multiple of {rounds} stages on "
                f"at least 2 devices, got {stages} stages; "
                f"use --shards {' or '.join(map(str, sorted(nearest)))}"
            )
        check_multiple(
            f"Looped with {stages} stages on {processes} devices", processes, micro_batches
        )

    def check_devices(self, devices: Sequence[int]) -> None:
        """`devices` are those of the processes: the stages of one share it anyway."""
        if shared := shared_devices(devices):
            raise ConfigError(
                f"Looped trains the stages of one process on one device, but --device-mapping "
                f"gives device {shared} to more than one process; "
                f"name {len(devices)} different devices"
            )


def _turns(
    way: Callable[[int, int], Action], own: range, processes: int, micro_batches: int
) -> list[Action]:
    """As many micro-batches as processes through the first stage, then through the next, …"""
    return [
        way(micro, stage)
        for first in range(0, micro_batches, processes)
        for stage in own
        for micro in range(first, min(first + processes, micro_batches))
    ]


@dataclass(frozen=True)
class ZeroBubble(Schedule):
    """Interleaved, with its backward passes split. One stage alone has no gaps to fill.

    The gradient of what came in (I) is sent on as soon as it is there; stage s does the weights (W)
    s micro-batches later. So every stage holds S activation sets: what stage 0 of interleaved
    holds. (ZB-H1 of Qi et al., Zero Bubble Pipeline Parallelism; torch: InterleavedZeroBubble.)
    """

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Each weight half follows the input half of `stage` micro-batches later."""
        if stages == 1:
            return super().actions(stage, stages, micro_batches)
        micros, lag = range(micro_batches), min(stage, micro_batches)
        ahead = self.unanswered(stage, stages, micro_batches) - 1
        actions: list[Action] = []
        for action in paired([*map(Forward, micros)], [*map(BackwardInput, micros)], ahead):
            actions.append(action)
            if isinstance(action, BackwardInput) and action.micro >= lag:
                actions.append(BackwardWeight(action.micro - lag))
        return [*actions, *map(BackwardWeight, micros[micro_batches - lag :])]

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """As early as what is needed is there: 3A + S − 1, where interleaved takes 3(A + S − 1)."""
        if stages == 1:
            return super().columns(stages, micro_batches)
        return earliest_columns(self, stages, micro_batches)

    def stash(self, stage: int, stages: int) -> int:
        """Activation sets just before a weight half at full flow."""
        del stage
        return stages

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        return min(self.stash(stage, stages), micro_batches)

    def unanswered(self, stage: int, stages: int, micro_batches: int) -> int:
        """As for interleaved: the lag of the weight halves is no business of the neighbors."""
        return min(stages - stage, micro_batches)


# Those that need no further number.
SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    {
        "grouped": Schedule("grouped", "time step", 2),
        "interleaved": Schedule("interleaved", "half-step", 1, shares_devices=False),
        # The same order, without the reference's rule on the number of micro-batches.
        "1f1b": Schedule("1f1b", "half-step", 1, shares_devices=False, any_count=True),
        "sequential": Schedule("sequential", "slot", 0),
        "zero-bubble": ZeroBubble(
            "zero-bubble",
            "third-step",
            1,
            shares_devices=False,
            splits_backward=True,
            any_count=True,
        ),
    },
)


def schedule_of(name: str, stages_per_device: int = 1) -> Schedule:
    """The schedule that the options ask for."""
    if name == "looped" and stages_per_device < 2:
        raise ConfigError(
            "--pipeline-schedule looped needs --stages-per-device of at least 2, got "
            f"{stages_per_device}; with one stage on each device use --pipeline-schedule "
            "interleaved"
        )
    if name == "looped":
        return Looped(name, "half-step", 1, False, stages_per_process=stages_per_device)
    if stages_per_device > 1:
        raise ConfigError(
            f"--stages-per-device {stages_per_device} needs --pipeline-schedule looped, "
            f"got {name}; leave --stages-per-device at 1, or use looped"
        )
    return SCHEDULES[name]
