"""A user's script: trains a pipeline of two stages, and prints a digest of its weights.

It has no guard `if __name__ == "__main__"`, and knows nothing about how it is started.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn

import convoy

accumulation = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
data = torch.randn(64, 4, 8)
stages = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1)), nn.Linear(16, 1)]
parameters = [parameter for stage in stages for parameter in stage.parameters()]
pipeline = convoy.pipeline(
    stages,
    convoy.Infeed(data),
    convoy.Outfeed(),
    gradient_accumulation=accumulation,
    optimizer=torch.optim.SGD(parameters, lr=0.05),
    loss_fn=lambda predictions: predictions.square().mean(),
    repeat_count=4,
)
pipeline()
pipeline.sync_modules()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters))
report = f"{digest.hexdigest()} {pipeline.layout.replicas} {pipeline.layout.processes}"
Path(sys.argv[2], os.environ.get("RANK", "0")).write_text(report)
