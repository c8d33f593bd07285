"""Who carries out a command: this process, its workers, or one of those that torchrun started.

What a run needs is imported when there is one: most that is asked of a verb is its help.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convoy.cli.found_data import with_found_data
from convoy.config.availability import refuse_unready
from convoy.config.layers import Setting
from convoy.config.resolve import Resolved
from convoy.config.schema import option_table
from convoy.errors import ConfigError
from convoy.launch.cores import threads_each
from convoy.launch.world import World, has_launcher

Payload = dict[str, Any]

_PRELOAD = ("convoy.assemble.runs",)  # with torch and all rooms: most of a worker's start


def carry_out(target: str, resolved: Resolved, words: Mapping[str, object]) -> int:
    """Run `module:function` in as many processes as the plan wants.

    Each gets its place in the world, the configuration and `words`, and returns an exit code.
    """
    from convoy.launch.worker import find
    from convoy.plan.phases import plan_phases
    from convoy.plan.plan import plan_run

    refuse_unready(resolved)
    world = World.from_environment(os.environ) if has_launcher(os.environ) else None
    resolved = with_found_data(resolved, quiet=world is not None and world.rank > 0).resolved
    plan, *_ = plan_phases(plan_run(resolved.config))  # all must be possible
    if world is not None:
        settled = settle(resolved, world.local_size)
        return find(target)(world, _payload(settled, words))
    if plan.topology.hosts > 1:
        raise ConfigError(
            f"--hosts {plan.topology.hosts}: convoy starts processes on one machine; "
            "start it on each host with torchrun"
        )
    if plan.topology.processes == 1:
        return find(target)(World.alone(), _payload(settle(resolved, 1), words))
    return run_in_workers(target, resolved, words)


def run_in_workers(target: str, resolved: Resolved, words: Mapping[str, object]) -> int:
    """The same in processes of their own, be it only one."""
    from convoy.launch.supervisor import Limits, run_workers
    from convoy.plan.phases import plan_phases
    from convoy.plan.plan import plan_run

    plan = plan_run(resolved.config)
    settled = settle(resolved, plan.topology.processes)
    stages = [one.total for phase in plan_phases(plan) for one in phase.memory]
    limits = Limits(bytes_each=max(stages))
    threads = settled.config.device.threads
    payload = _payload(settled, words)
    outcome = run_workers(plan.topology, target, payload, threads, limits, preload=_PRELOAD)
    error = outcome.error()
    if error is not None:
        raise error
    return outcome.code


def settle(resolved: Resolved, processes: int) -> Resolved:
    """What was found here becomes part of the run: the bits depend on the threads, and a run may
    be resumed from another folder."""
    settings = dict(resolved.settings)
    if not resolved.config.device.threads:
        settings["threads"] = Setting(threads_each(0, processes), "cores of this machine")
    if resolved.config.data.data_dir is not None:
        whole = str(Path(resolved.config.data.data_dir).absolute())
        settings["data_dir"] = Setting(whole, settings["data_dir"].source)
    return Resolved.of(settings)


def changed(resolved: Resolved, values: Mapping[str, Any], source: str) -> Resolved:
    """The same configuration with other values."""
    settings = {name: Setting(value, source) for name, value in values.items()}
    return Resolved.of({**resolved.settings, **settings})


def _payload(resolved: Resolved, words: Mapping[str, object]) -> Payload:
    """As JSON can carry it."""
    settings = {name: [one.value, one.source] for name, one in resolved.settings.items()}
    return {**words, "settings": settings}


def resolved_of(payload: Payload) -> Resolved:
    """The configuration, as a worker finds it in its payload."""
    table = option_table()
    return Resolved.of(
        {
            name: Setting(table[name].kind.check(value), source)
            for name, (value, source) in payload["settings"].items()
        }
    )
