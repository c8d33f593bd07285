"""A program that kills child processes with SIGKILL while they save; prints JSON.

kill_saver.py moments FOLDER KILLS     at random moments of an endless series of saves
kill_saver.py calls FOLDER             before every single call that changes the file system
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from support.checkpoint_samples import fingerprint, names, small

KEEP = 2
CHANGING_CALLS = ("fsync", "rename", "mkdir", "chmod", "unlink", "rmdir")


def in_child(work: Callable[[], None]) -> int:
    """Fork; the child exits without any cleanup."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def save_forever(store: CheckpointStore, update: int) -> None:
    while True:
        store.save(small(update))
        store.prune(KEEP)
        update += 1


def problems_in(store: CheckpointStore, at_least: int) -> list[str]:
    """Problems of the checkpoints that are left after a kill."""
    left = store.updates()
    found = store.load_newest()
    wrong = [n for n in left if fingerprint(store.load(n)) not in versions(n)]
    store.clean_up()
    leftovers = set(names(store.folder)) - {f"update-{n}" for n in store.updates()}
    return [
        *found.skipped,
        *(f"update {n} has wrong contents" for n in wrong),
        *(f"{name} was left" for name in leftovers),
        *([] if len(store.updates()) >= at_least else [f"only {store.updates()} are left"]),
    ]


def versions(update: int) -> list[list[object]]:
    """The valid contents of this update: as first saved, or as saved again."""
    return [fingerprint(small(update)), fingerprint(saved_again(update))]


def saved_again(update: int) -> CheckpointContents:
    return CheckpointContents(small(99).model, state={"update": update})


def kill_at_moments(folder: Path, kills: int) -> dict[str, object]:
    """Each child continues from the checkpoints of the previous one."""
    store, rng = CheckpointStore(folder), random.Random(11)
    for update in (1, 2):
        store.save(small(update))
    problems, interrupted = [], 0
    for _ in range(kills):
        child = in_child(lambda: save_forever(store, store.load_newest().contents.update + 1))
        time.sleep(rng.uniform(0, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        interrupted += any(".tmp-" in name for name in names(folder))
        problems += problems_in(store, at_least=KEEP)
    return {"kills": kills, "interrupted": interrupted, "problems": problems}


def kill_at_calls(folder: Path) -> dict[str, object]:
    """Save a new checkpoint and replace an old one, killed before the 1st, 2nd, 3rd … call."""
    problems: list[str] = []
    kills, status = 0, -1
    while status != 0:
        store = CheckpointStore(folder / str(kills))
        for update in (1, 2):
            store.save(small(update))
        child = in_child(lambda: save_and_die(store, kills))  # noqa: B023 - forks at once
        status = os.waitpid(child, 0)[1]
        problems += [f"call {kills}: {text}" for text in problems_in(store, at_least=KEEP)]
        kills += status == signal.SIGKILL
        if status not in (0, signal.SIGKILL):
            problems.append(f"call {kills}: the child ended with {status}")
            break
    return {"kills": kills, "problems": problems}


def save_and_die(store: CheckpointStore, calls_allowed: int) -> None:
    left = iter(range(calls_allowed))

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **kwargs: object) -> object:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return count

    for name in CHANGING_CALLS:
        setattr(os, name, counted(os.__dict__[name]))
    store.save(small(3))
    store.prune(KEEP)
    store.save(saved_again(2))


if __name__ == "__main__":
    if sys.argv[1] == "moments":
        print(json.dumps(kill_at_moments(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(json.dumps(kill_at_calls(Path(sys.argv[2]))))
