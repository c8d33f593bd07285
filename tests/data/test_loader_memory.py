"""The peak memory of loading, measured in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADING_SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np, simplejpeg, torch
from convoy.data.loader import DeviceTransfer
from convoy.data.loader import LoaderOptions, TrainingFeed
from convoy.data.loader import SampleOrder, MicroBatchIndex
from convoy.data.sources.photos import IMAGENET_NORMALIZATION, PhotoSource, PhotoView
from convoy.data.sources.photo_readers import PhotoOptions, make_reader
from convoy.data.records.record import NO_BOXES, EncodedImage, RecordLocation
from convoy.planning.topology import BatchPlan

class Repeated:
    class_names = ("a", "b")
    labels = np.arange(4096) % 2
    def __init__(self):
        noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
        self.encoded = simplejpeg.encode_jpeg(noise, 50)
    def __len__(self): return 4096
    def location(self, number): return RecordLocation("memory")
    def read(self, number): return EncodedImage(self.encoded, NO_BOXES)

micro, where = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
photos = PhotoSource(Repeated(), "train")
order = SampleOrder(4096, BatchPlan(micro, 1024 // micro, 1), seed=0)
reader = make_reader(photos.records, PhotoOptions(224, 0, "pytorch"))
view = PhotoView(photos, 224, reader)
feed = TrainingFeed(view, order, DeviceTransfer(IMAGENET_NORMALIZATION, where, torch.device("cpu")))
indices = [MicroBatchIndex(update, m) for update in range(3) for m in range(1024 // micro)]
for batch in feed.micro_batches(indices, LoaderOptions(2, 3, -(-micro // 2))):
    batch.images.sum()
    del batch
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.evidence
@pytest.mark.parametrize(("micro", "where"), [(256, "host"), (1024, "device"), (1024, "host")])
def test_a_global_batch_of_1024_loads_in_less_than_1_5_gigabytes(
    tmp_path: Path, micro: int, where: str
) -> None:
    script = tmp_path / "loading.py"
    script.write_text(LOADING_SCRIPT)
    command = [sys.executable, str(script), str(micro), where]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    peak = int(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    print(f"micro-batches of {micro}, normalized on the {where}: {peak / 1e9:.2f} GB")

    assert peak < 1.5e9
