"""What one process of a run does, perhaps the only one; torch is imported here and no sooner."""

from pathlib import Path
from typing import TYPE_CHECKING

from convoy.cli.crew import Payload, resolved_of
from convoy.launch.world import World

if TYPE_CHECKING:
    from convoy.report.summary import Finished


def start(world: World, payload: Payload) -> "Finished":
    """Its part in a new run."""
    from convoy.assemble.runs import start_run
    from convoy.cli.signals import stop_on_signals
    from convoy.engine.stopping import StopRequest

    stop = StopRequest()
    with stop_on_signals(stop):
        return start_run(resolved_of(payload), world, stop)


def resume(world: World, payload: Payload) -> "Finished":
    """Its part in a run that goes on."""
    from convoy.assemble.phases import Wish
    from convoy.assemble.runs import resume_run
    from convoy.cli.signals import stop_on_signals
    from convoy.engine.stopping import StopRequest

    stop = StopRequest()
    checkpoint = Path(payload["checkpoint"]) if payload["checkpoint"] else None
    wish = Wish(resolved_of(payload), checkpoint, payload["override"])
    with stop_on_signals(stop):
        return resume_run(Path(payload["run"]), wish, world, stop)
