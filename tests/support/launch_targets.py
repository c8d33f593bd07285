"""Targets of workers in the tests of the supervisor; each returns an exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from convoy.errors import DataError
from convoy.launch.world import World

LIFE = 600  # seconds until a worker ends without a signal


def end(world: World, payload: dict[str, Any]) -> int:
    """Return the code that the payload has for this rank."""
    codes: list[int] = payload["codes"]
    return codes[world.rank]


def describe(world: World, payload: dict[str, Any]) -> int:
    """Write the arguments and environment of this worker to a file."""
    seen = {
        "world": [world.rank, world.world_size, world.local_rank, world.local_world_size],
        "text": payload["text"],
        "threads": torch.get_num_threads(),
        "variable": os.environ["OMP_NUM_THREADS"],
        "later": os.environ.get("SET_JUST_NOW"),
        "cores": sorted(os.sched_getaffinity(0)),
        "leads_its_session": os.getsid(0) == os.getpid(),
    }
    (Path(payload["folder"]) / f"{world.rank}.json").write_text(json.dumps(seen))
    return 0


def print_lines(world: World, payload: dict[str, Any]) -> int:
    """Print to both streams and to the descriptor; only rank 0 ends its last line."""
    print(f"out {world.rank}")
    os.write(1, b"raw\n")
    print(f"err {world.rank}", file=sys.stderr)
    sys.stdout.write(payload["last"] + ("\n" if world.rank == 0 else ""))
    return 0


def fail(world: World, payload: dict[str, Any]) -> int:
    """Fail on one rank, in the requested way, while the others wait for it."""
    _join(world)
    if world.rank == payload["rank"]:
        match payload["failure"]:
            case "data error":
                raise DataError("17 of 20 records are damaged")
            case "bug":
                raise ValueError("not in order")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "os exit":
                os._exit(3)
            case "exit":
                sys.exit(4)
            case "close first":
                dist.destroy_process_group()
                time.sleep(0.1)
                raise DataError("reported after the others failed")
    dist.all_reduce(torch.ones(1))
    return 0


def sleep(world: World, payload: dict[str, Any]) -> int:
    """Sleep with the requested signal handling; write each received signal to a file."""
    folder = Path(payload["folder"])

    def record(number: int, frame: object) -> None:
        del frame
        with (folder / f"received-{world.rank}").open("a") as received:
            received.write(f"{signal.Signals(number).name}\n")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if payload["signals"] != "default":
            signal.signal(number, record)
    if payload["signals"] == "child":  # a child process in the worker's session
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIFE})"])
    (folder / f"ready-{world.rank}").write_text(str(os.getpid()))
    end = time.monotonic() + LIFE
    while time.monotonic() < end:
        if payload["signals"] == "obey" and (folder / "update-is-done").exists():
            return 75
        time.sleep(0.05)
    return 0


def _join(world: World) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    assert world.rendezvous is not None
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(world.rendezvous, world.world_size),
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=LIFE),
    )
