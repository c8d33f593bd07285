"""A user's script: trains with two replicas, stops, and resumes; reads the run in every process."""

import os
import sys
from pathlib import Path

import convoy

folder = Path(sys.argv[1])
options = {"model": "resnet8", "image_size": 12, "samples": 96, "micro_batch_size": 8}
quiet = {"threads": 1, "progress": "none", "dataloader_worker": 0, "validation_mode": "none"}
stopped = convoy.train(
    output=folder / "run", epochs=1, replicas=2, stop_after=2, **options, **quiet
)
updates = stopped.summary.updates
run = convoy.resume(stopped)
report = f"{run.summary.weights_sha256} {updates} {run.summary.updates}"
(folder / os.environ.get("RANK", "alone")).write_text(report)
