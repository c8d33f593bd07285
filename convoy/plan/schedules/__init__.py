"""Pipeline schedules, by name; the order of work of each is data: see `one_f_one_b.py`.

The reference applications' "Interleaved" is what torch calls 1F1B, with a rule on the number of
micro-batches that came from their compiler; `1f1b` takes any. torch's own "Interleaved1F1B" is
`looped` here: several stages on each device. `grouped` has no counterpart in torch.
"""

from convoy.errors import ConfigError
from convoy.plan.schedules.looped import Looped
from convoy.plan.schedules.one_f_one_b import Schedule
from convoy.plan.schedules.zero_bubble import ZeroBubble
from convoy.registry import Registry

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
            "zero-bubble", "third-step", 1, shares_devices=False, splits_backward=True
        ),
    },
)


def looped(stages_per_device: int) -> Schedule:
    """So many stages on each device, one for each time around."""
    if stages_per_device < 2:
        raise ConfigError(
            "--pipeline-schedule looped needs --stages-per-device of at least 2, got "
            f"{stages_per_device}; with one stage on each device use --pipeline-schedule "
            "interleaved"
        )
    return Looped("looped", "half-step", 1, False, stages_per_process=stages_per_device)


def schedule_of(name: str, stages_per_device: int = 1) -> Schedule:
    """The schedule that the options ask for."""
    if name == "looped":
        return looped(stages_per_device)
    if stages_per_device > 1:
        raise ConfigError(
            f"--stages-per-device {stages_per_device} needs --pipeline-schedule looped, "
            f"got {name}; leave --stages-per-device at 1, or use looped"
        )
    return SCHEDULES[name]
