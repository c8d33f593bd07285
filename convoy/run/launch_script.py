"""Run a user's script in several processes on this machine, each a rank of torch.distributed.

The processes get the variables that torchrun sets, so a script needs no changes. Rank 0 serves the
store of the rendezvous on a port of 127.0.0.1 that this module binds.
"""

import atexit
import os
import runpy
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from convoy.errors import ConfigError, ExitCode
from convoy.launch.supervisor import LaunchOptions, LaunchResult, run_workers
from convoy.launch.world import REPLICAS_VARIABLE, World
from convoy.machine import threads_per_process
from convoy.parallel.process_groups import bind_to_loopback
from convoy.planning.topology import TopologyPlan

_LOOPBACK = "127.0.0.1"
_PRELOAD = ("convoy.api.custom_loops",)


@dataclass(frozen=True)
class ScriptJob:
    """What each process runs."""

    script: str
    arguments: tuple[str, ...]
    replicas: int
    listener: socket.socket  # bound to the port of the rendezvous


def launch_script(
    script: Path, arguments: Sequence[str], replicas: int, stages: int, threads: int = 0
) -> LaunchResult:
    """Run a script in replicas × stages processes until all end; 0 threads divide the cores."""
    if not script.exists():
        raise ConfigError(f"{script} does not exist")
    topology = TopologyPlan(1, 1, replicas, stages)
    threads = threads_per_process(threads, topology.processes)
    with socket.create_server((_LOOPBACK, 0), backlog=128) as listener:
        job = ScriptJob(str(script), tuple(arguments), replicas, listener)
        target = f"{__name__}:run_script"
        return run_workers(topology, target, job, threads, LaunchOptions(_PRELOAD))


def run_script(world: World, job: ScriptJob) -> int:
    """Run the script in this process as the interpreter would."""
    host, port = job.listener.getsockname()
    store = None
    if world.rank == 0:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=job.listener.detach(),
        )
    job.listener.close()
    bind_to_loopback()
    os.environ.update(_launcher_variables(world, job.replicas, port))
    sys.argv = [job.script, *job.arguments]
    sys.path.insert(0, str(Path(job.script).resolve().parent))
    try:
        runpy.run_path(job.script, run_name="__main__")
        return ExitCode.DONE
    except SystemExit as exiting:
        return _exit_code(exiting)
    finally:
        _finish()
        del store  # served until here


def _launcher_variables(world: World, replicas: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_world_size),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is served already
        REPLICAS_VARIABLE: str(replicas),
    }


def _exit_code(exiting: SystemExit) -> int:
    if exiting.code is None or isinstance(exiting.code, int):
        return exiting.code or ExitCode.DONE
    print(exiting.code, file=sys.stderr)
    return ExitCode.BUG


def _finish() -> None:
    """Wait for threads, and call the functions of `atexit`, as at the end of an interpreter.

    A worker ends without it. Python has no public functions for this.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
