"""Pipeline schedules by name: the order of forwards and backwards on each stage, as data.

The reference applications' "Interleaved" is what torch calls 1F1B, restricted to the micro-batch
counts that their compiler supported; `1f1b` accepts any. The "Interleaved1F1B" of torch is
`looped` here: several stages on each device. `grouped` has no counterpart in torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from convoy.errors import ConfigError
from convoy.planning.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    interleave,
    peak_in_flight,
    start_times,
)
from convoy.registry import Registry

STEADY_ROUNDS = 4  # rounds of P micro-batches until the steady state


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule, defined by the number of micro-batches in flight.

    A micro-batch takes 2S slots: forward on stage 0 … S−1, then backward on S−1 … 0. A new one
    enters when its slots are free, every 2S / in-flight columns of the timetable:

                    in flight   a column is                 enters every    stash of stage s
    grouped         2S          a time step: an F and a B   column          2(S−1−s)
    interleaved     S           a half-step: an F or a B    second column   S−1−s
    sequential      1           a slot: one device works    2S columns      0

    With one stage all schedules are F0 B0 F1 B1 …, for any number of micro-batches.
    """

    name: str
    column_unit: str  # name of a timetable column
    in_flight_per_stage: int  # 0: one micro-batch in total
    shares_devices: bool = True  # two stages can share a device
    splits_backward: bool = False  # weight gradients are a separate action
    stages_per_process: int = 1
    any_micro_batches: bool = False  # any count that fills the pipeline once

    @property
    def allows_recompute(self) -> bool:
        """Whether recomputation is possible; each half of a split backward would recompute."""
        return not self.splits_backward

    def in_flight(self, stages: int) -> int:
        """Maximum number of micro-batches in flight."""
        return max(1, self.in_flight_per_stage * stages) if stages > 1 else 1

    def spacing(self, stages: int) -> int:
        """Columns from the start of one micro-batch to the start of the next."""
        return 2 * stages // self.in_flight(stages)

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Warm up just far enough, then alternate forwards and backwards."""
        micros = range(micro_batches)
        warmup = self.peak_stash(stage, stages, micro_batches) - 1
        return interleave([*map(Forward, micros)], [*map(Backward, micros)], warmup)

    def orders(self, stages: int, micro_batches: int) -> list[list[Action]]:
        """The actions of each process, in order; here a process has one stage."""
        return [self.actions(stage, stages, micro_batches) for stage in range(stages)]

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """The timetable column of each action of `orders`."""
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
        """Stashed micro-batches right before a backward pass in the steady state."""
        return -(-_round_trip_columns(stage, stages) // self.spacing(stages))

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        """Peak number of micro-batches whose activations are stashed, for which memory is planned.

        Grouped has one more than `stash`: in each step its forward comes before its backward.
        """
        return min(_round_trip_columns(stage, stages) // self.spacing(stages) + 1, micro_batches)

    def max_lead(self, stage: int, stages: int, micro_batches: int) -> int:
        """Maximum number of micro-batches a stage sends before the first gradient returns."""
        return self.peak_stash(stage, stages, micro_batches)

    def num_columns(self, stages: int, micro_batches: int) -> int:
        """Number of timetable columns of one update."""
        return 1 + max(max(row) for row in self.columns(stages, micro_batches))

    def bubble_fraction(self, stages: int, micro_batches: int) -> float:
        """Fraction of the time a device is idle, if all actions take equally long."""
        two_in_a_column = stages > 1 and self.in_flight_per_stage == 2
        total = self.num_columns(stages, micro_batches) * (1 + two_in_a_column)
        busy = len(self.orders(stages, micro_batches)[0])
        return (total - busy) / total

    def check_micro_batches(self, stages: int, micro_batches: int) -> None:
        """Refuse a number of micro-batches that does not fill the pipeline."""
        subject = f"--pipeline-schedule {self.name} with {stages} stages"
        if not self.any_micro_batches:
            check_multiple(subject, self.in_flight(stages), micro_batches)
        elif micro_batches < stages:
            raise ConfigError(
                f"{subject} needs --gradient-accumulation to be at least {stages}, "
                f"got {micro_batches}; use {stages}"
            )

    def check_devices(self, devices: Sequence[int]) -> None:
        """Refuse a device that would have to alternate between two stages."""
        shared = format_shared_devices(devices)
        if shared and not self.shares_devices:
            raise ConfigError(
                f"--pipeline-schedule {self.name} trains one stage per device, but "
                f"--device-mapping gives device {shared} more than one; list {len(devices)} "
                "different devices, or use --pipeline-schedule grouped or sequential"
            )


def _round_trip_columns(stage: int, stages: int) -> int:
    """Columns from a micro-batch's forward on a stage to its backward there."""
    return 2 * (stages - stage) - 1


def format_shared_devices(devices: Sequence[int]) -> str:
    shared = {device for device in devices if devices.count(device) > 1}
    return ", ".join(map(str, sorted(shared)))


def check_multiple(subject: str, multiple: int, micro_batches: int) -> None:
    """Refuse a number that is not a multiple; suggest the nearest ones."""
    if micro_batches >= multiple and micro_batches % multiple == 0:
        return
    below = micro_batches // multiple * multiple
    allowed = [str(count) for count in (below, below + multiple) if count > 0]
    raise ConfigError(
        f"{subject} needs --gradient-accumulation to be a multiple of {multiple}, "
        f"got {micro_batches}; use {' or '.join(allowed)}"
    )


@lru_cache(maxsize=1)  # a plan calls it several times
def earliest_columns(schedule: Schedule, stages: int, micro_batches: int) -> list[list[int]]:
    """The timetable column of each action, if each starts as early as possible."""
    starts = start_times(schedule.orders(stages, micro_batches))
    return [[round(start) for start in row] for row in starts]


@dataclass(frozen=True)
class LoopedSchedule(Schedule):
    """Several stages per process: a micro-batch passes through all processes several times.

    Process p of P has the stages p, p + P, p + 2P, … P micro-batches at a time alternate. Stages
    are shorter, so the bubble is smaller; in return there are more transfers and more stashed
    activations. torch calls it Interleaved1F1B (Narayanan et al., 2021).
    """

    def processes(self, stages: int) -> int:
        return stages // self.stages_per_process

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """The actions of one stage, in the order of its process."""
        order = self._order(stage % self.processes(stages), stages, micro_batches)
        return [action for action in order if action.stage == stage]

    def orders(self, stages: int, micro_batches: int) -> list[list[Action]]:
        processes = range(self.processes(stages))
        return [self._order(process, stages, micro_batches) for process in processes]

    def _order(self, process: int, stages: int, micro_batches: int) -> list[Action]:
        """Warm up just far enough, then alternate forwards and backwards."""
        processes = self.processes(stages)
        local = range(process, stages, processes)
        forwards = _round_robin(Forward, local, processes, micro_batches)
        backwards = _round_robin(Backward, local[::-1], processes, micro_batches)
        warmup = self.process_peak_stash(process, stages, micro_batches) - 1
        return interleave(forwards, backwards, warmup)

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """Each action starts as soon as its inputs are available."""
        return earliest_columns(self, stages, micro_batches)

    def in_flight(self, stages: int) -> int:
        """Micro-batches that the first stage has sent and not received back."""
        return self.stash(0, stages)

    def stash(self, stage: int, stages: int) -> int:
        return self.peak_stash(stage, stages, STEADY_ROUNDS * self.processes(stages))

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        return peak_in_flight(self.actions(stage, stages, micro_batches))

    def process_peak_stash(self, process: int, stages: int, micro_batches: int) -> int:
        """Peak number of stashed micro-batches, over all stages of a process.

        A full round on all stages but one, plus the way to the last process and back.
        """
        processes, rounds = self.processes(stages), self.stages_per_process
        lead = (rounds - 1) * processes + 2 * (processes - 1 - process)
        return min(lead + 1, rounds * micro_batches)

    def check_micro_batches(self, stages: int, micro_batches: int) -> None:
        """Refuse counts that do not fill all processes and all rounds."""
        rounds, processes = self.stages_per_process, self.processes(stages)
        if stages % rounds or processes < 2:
            below = max(2, processes) * rounds
            nearest = {below, max(2, processes + 1) * rounds}
            raise ConfigError(
                f"--pipeline-schedule looped with --stages-per-device {rounds} needs a multiple of "
                f"{rounds} stages on at least 2 devices, got {stages} stages; "
                f"use --shards {' or '.join(map(str, sorted(nearest)))}"
            )
        subject = f"--pipeline-schedule looped with {stages} stages on {processes} devices"
        check_multiple(subject, processes, micro_batches)

    def check_devices(self, devices: Sequence[int]) -> None:
        """Refuse a device shared by processes; the stages of one process share a device anyway."""
        if shared := format_shared_devices(devices):
            raise ConfigError(
                "--pipeline-schedule looped trains the stages of one process on one device, but "
                f"--device-mapping gives device {shared} to more than one process; "
                f"list {len(devices)} different devices"
            )


def _round_robin(
    action_type: Callable[[int, int], Action], stages: range, processes: int, micro_batches: int
) -> list[Action]:
    """Rounds of P micro-batches through the first stage, then the next, and so on."""
    return [
        action_type(micro, stage)
        for first in range(0, micro_batches, processes)
        for stage in stages
        for micro in range(first, min(first + processes, micro_batches))
    ]


@dataclass(frozen=True)
class ZeroBubbleSchedule(Schedule):
    """Interleaved with split backward passes; a single stage has no bubble to fill.

    The input gradient (I) is sent as soon as it is computed; stage s computes the weight gradient
    (W) s micro-batches later. Every stage therefore stashes S micro-batches, as stage 0 of
    interleaved does. (ZB-H1 of Qi et al., Zero Bubble Pipeline Parallelism; in torch
    InterleavedZeroBubble.)
    """

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Each weight half follows the input half of the micro-batch `stage` later."""
        if stages == 1:
            return super().actions(stage, stages, micro_batches)
        micros, lag = range(micro_batches), min(stage, micro_batches)
        warmup = self.max_lead(stage, stages, micro_batches) - 1
        actions: list[Action] = []
        for action in interleave([*map(Forward, micros)], [*map(BackwardInput, micros)], warmup):
            actions.append(action)
            if isinstance(action, BackwardInput) and action.micro >= lag:
                actions.append(BackwardWeight(action.micro - lag))
        return [*actions, *map(BackwardWeight, micros[micro_batches - lag :])]

    def columns(self, stages: int, micro_batches: int) -> list[list[int]]:
        """As early as possible: 3A + S − 1 columns, where interleaved takes 3(A + S − 1)."""
        if stages == 1:
            return super().columns(stages, micro_batches)
        return earliest_columns(self, stages, micro_batches)

    def stash(self, stage: int, stages: int) -> int:
        """Stashed micro-batches right before a W pass in the steady state."""
        del stage
        return stages

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        return min(self.stash(stage, stages), micro_batches)

    def max_lead(self, stage: int, stages: int, micro_batches: int) -> int:
        """As for interleaved: delayed weight gradients (W) do not affect other stages."""
        return min(stages - stage, micro_batches)


# Schedules without further parameters.
SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    {
        "grouped": Schedule("grouped", "time step", 2),
        "interleaved": Schedule("interleaved", "half-step", 1, shares_devices=False),
        # The same order, for any number of micro-batches.
        "1f1b": Schedule("1f1b", "half-step", 1, shares_devices=False, any_micro_batches=True),
        "sequential": Schedule("sequential", "slot", 0),
        "zero-bubble": ZeroBubbleSchedule(
            "zero-bubble",
            "third-step",
            1,
            shares_devices=False,
            splits_backward=True,
            any_micro_batches=True,
        ),
    },
)


def make_schedule(name: str, stages_per_device: int = 1) -> Schedule:
    if name == "looped" and stages_per_device < 2:
        raise ConfigError(
            "--pipeline-schedule looped needs --stages-per-device to be at least 2, got "
            f"{stages_per_device}; with one stage per device use --pipeline-schedule "
            "interleaved"
        )
    if name == "looped":
        return LoopedSchedule(name, "half-step", 1, False, stages_per_process=stages_per_device)
    if stages_per_device > 1:
        raise ConfigError(
            f"--stages-per-device {stages_per_device} needs --pipeline-schedule looped, "
            f"got {name}; leave --stages-per-device at 1, or use looped"
        )
    return SCHEDULES[name]
