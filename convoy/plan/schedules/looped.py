"""Looped: several stages on each process, so a micro-batch goes around all of them several times.

    P = 2 processes, V = 2 stages each        process 0: stages 0, 2        process 1: stages 1,
3

Stages are V times shorter and so are the gaps at both ends; in return V times as many borders
are crossed and more is kept. torch calls it Interleaved1F1B (Narayanan et al., 2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.errors import ConfigError
from convoy.plan.schedules.actions import Action, Backward, Forward, Row, most_held, paired
from convoy.plan.schedules.one_f_one_b import Schedule, check_multiple
from convoy.plan.schedules.simulate import earliest_columns

FULL = 4  # turns of P micro-batches after which nothing grows any more


@dataclass(frozen=True)
class Looped(Schedule):
    """Process p of P holds the stages p, p + P, p + 2P, … P micro-batches at a time take turns."""

    def processes(self, stages: int) -> int:
        return stages // self.stages_per_process

    def actions(
        self, stage: int, stages: int, micro_batches: int, *, training: bool = True
    ) -> list[Action]:
        """The part of one stage in the order of its process."""
        process = stage % self.processes(stages)
        whole = self._order(process, stages, micro_batches, training)
        return [action for action in whole if action.stage == stage]

    def orders(self, stages: int, micro_batches: int, *, training: bool = True) -> list[Row]:
        processes = range(self.processes(stages))
        return [self._order(process, stages, micro_batches, training) for process in processes]

    def _order(self, process: int, stages: int, micro_batches: int, training: bool) -> Row:
        """Run ahead just far enough, then pair each forward with the oldest backward."""
        processes = self.processes(stages)
        own = range(process, stages, processes)
        there = _turns(own, processes, micro_batches)
        back = _turns(own[::-1], processes, micro_batches)
        forwards: Row = [Forward(micro, stage) for stage, micro in there]
        backwards: Row = [Backward(micro, stage) for stage, micro in back]
        ahead = self.process_stash(process, stages, micro_batches) - 1
        return paired(forwards, backwards, ahead) if training else forwards

    def columns(self, stages: int, micro_batches: int, *, training: bool = True) -> list[list[int]]:
        """As early as what is needed is there."""
        return earliest_columns(self, stages, micro_batches, training)

    def in_flight(self, stages: int, *, training: bool = True) -> int:
        """What the first stage has sent off and not yet back, or not yet at the end."""
        return self.stash(0, stages) if training else self.processes(stages)

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
        shared = sorted({device for device in devices if devices.count(device) > 1})
        if shared:
            raise ConfigError(
                f"Looped trains the stages of one process on one device, but --device-mapping "
                f"gives device {', '.join(map(str, shared))} to more than one process; "
                f"name {len(devices)} different devices"
            )


def _turns(own: range, processes: int, micro_batches: int) -> list[tuple[int, int]]:
    """As many micro-batches as processes through the first stage, then through the next, …"""
    return [
        (stage, micro)
        for first in range(0, micro_batches, processes)
        for stage in own
        for micro in range(first, min(first + processes, micro_batches))
    ]
