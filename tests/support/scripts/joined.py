"""A user's script: joins the other processes, and then does what its arguments say, by rank."""

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, action, chosen = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(1)
dist.all_reduce(total)
(folder / f"ready-{rank}").write_text(f"{os.getpid()} {int(total)} {__name__}")
atexit.register((folder / f"left-{rank}").touch)
if action == "wait":
    time.sleep(600)
if rank == chosen:
    match action:
        case "raise":
            raise ValueError("not in order")
        case "exit":
            sys.exit(17)
        case "text":
            sys.exit("the disk is missing")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "thread":
            threading.Timer(0.3, (folder / "thread").touch).start()
if action != "thread":
    dist.barrier()  # the other ranks wait for the chosen one
