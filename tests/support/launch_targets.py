"""What workers do in the tests of their supervisor. Every one returns an exit code."""

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

LIFE = 600  # seconds, of a worker whom nobody ends


def end(world: World, payload: dict[str, Any]) -> int:
    """With the code that the payload has for this rank."""
    codes: list[int] = payload["codes"]
    return codes[world.rank]


def describe(world: World, payload: dict[str, Any]) -> int:
    """Write down what this worker was given."""
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
    """To both streams, also past Python, and others than the first without a line end at last."""
    print(f"out {world.rank}")
    os.write(1, b"raw\n")
    print(f"err {world.rank}", file=sys.stderr)
    sys.stdout.write(payload["last"] + ("\n" if world.rank == 0 else ""))
    return 0


def fail(world: World, payload: dict[str, Any]) -> int:
    """One rank fails in the way it is told while the others wait for it."""
    _join(world)
    if world.rank == payload["rank"]:
        match payload["way"]:
            case "data error":
                raise DataError("17 of 20 records are damaged")
            case "bug":
                raise ValueError("not in order")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave":
                os._exit(3)
            case "exit":
                sys.exit(4)
            case "close first":
                dist.destroy_process_group()
                time.sleep(0.1)
                raise DataError("told only after the others noticed")
    dist.all_reduce(torch.ones(1))
    return 0


def sleep(world: World, payload: dict[str, Any]) -> int:
    """Long, with the signals handled as told; each signal that is heard is written down."""
    folder = Path(payload["folder"])

    def note(number: int, frame: object) -> None:
        del frame
        with (folder / f"heard-{world.rank}").open("a") as heard:
            heard.write(f"{signal.Signals(number).name}\n")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if payload["signals"] != "default":
            signal.signal(number, note)
    if payload["signals"] == "child":  # a process of the worker's own, in its session
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
