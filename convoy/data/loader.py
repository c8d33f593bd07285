"""A process that prepares photos for another one: `python -m convoy.data.loader`.

It is told once, in JSON on its standard input, what to open and how to look at it; then a line for
each piece of work, answered by a line. The pixels lie in memory that both have mapped.
"""

import json
import mmap
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convoy.data.description import ROOM, Description
from convoy.data.images.window import Rule
from convoy.data.photos import Photos, TrainingPhotos, ValidationPhotos
from convoy.data.records.indexing import unheard
from convoy.data.records.opening import cropped_side, open_records
from convoy.data.records.record import BadRecordError
from convoy.data.source import Pixels
from convoy.errors import ConvoyError

View = TrainingPhotos | ValidationPhotos


def main() -> None:
    """Serve until there is nobody left who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks decides when to end
    torch.set_num_threads(1)
    wish = Description(**json.loads(sys.stdin.readline()))
    memory = mmap.mmap(int(sys.argv[1]), wish.room_bytes)
    room = np.frombuffer(memory, np.uint8).reshape(ROOM, wish.size, wish.size, 3)
    views: list[View] = []
    _answer(lambda: views.append(_view(wish)))
    for line in sys.stdin:
        _answer(partial(_work, views[0], json.loads(line), room))


def _view(wish: Description) -> View:
    records = open_records(Path(wish.folder), wish.split, unheard, unheard)
    photos = Photos(records, wish.split, cropped_side(records))
    if wish.rule is None:
        return ValidationPhotos(photos, wish.size)
    return TrainingPhotos(photos, wish.size, wish.seed, Rule[wish.rule], wish.use_boxes)


def _work(view: View, request: Any, room: Pixels) -> None:
    epoch = request["epoch"]
    if "ids" in request:
        ids = np.array(request["ids"], np.int64)
        view(ids, epoch, room[: len(ids)])
    else:
        view.one(request["slot"], epoch, room[0], request["number"])


def _answer(work: Callable[[], object]) -> None:
    try:
        work()
        answer = {}
    except BadRecordError as error:
        answer = {"bad": error.reason}
    except ConvoyError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
