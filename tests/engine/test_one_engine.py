"""convoy.train and users' loops and pipelines run the same code."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import convoy
from convoy.data import infeed, loader
from convoy.engine import loops
from convoy.numerics.gradients import GradientTree
from convoy.parallel.executor import PipelineExecutor, TrainingStage
from convoy.parallel.replicas import Replicas

UPDATES, MICRO_BATCHES = 4, 2
# What an update consists of; data is prefetched by one function, for both kinds of feed.
PIECES: list[tuple[Any, str]] = [
    (loops._Step, "run"),
    (PipelineExecutor, "run"),
    (TrainingStage, "forward"),
    (TrainingStage, "backward"),
    (GradientTree, "collect"),
    (Replicas, "reduce"),
    (loader, "prefetch"),
    (infeed, "prefetch"),
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each piece is called."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    assert infeed.prefetch is loader.prefetch
    for owner, name in PIECES:
        full_name = f"{owner.__name__.rpartition('.')[2]}.{name}"
        full_name = "prefetch" if name == "prefetch" else full_name
        monkeypatch.setattr(owner, name, counted(full_name, vars(owner)[name]))
    return counts


def train(folder: Path) -> None:
    convoy.train(
        model="resnet8",
        data="generated",
        num_classes=4,
        image_size=8,
        samples=64,
        micro_batch_size=4,
        gradient_accumulation=MICRO_BATCHES,
        updates=UPDATES,
        epochs=None,
        device_iterations=2,
        validation_mode="none",
        threads=1,
        progress="none",
        output=folder / "run",
    )


def run_pipeline(folder: Path) -> None:
    del folder
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    parameters = [*first.parameters(), *second.parameters()]
    pipeline = convoy.pipeline(
        [first, second],
        convoy.Infeed(torch.randn(UPDATES * MICRO_BATCHES, 2, 4)),
        gradient_accumulation=MICRO_BATCHES,
        optimizer=torch.optim.SGD(parameters, lr=0.1),
        loss_fn=lambda outputs: outputs.square().mean(),
        repeat_count=UPDATES,
        schedule="1f1b",
    )
    pipeline()


@pytest.mark.parametrize(("run", "stages"), [(train, 1), (run_pipeline, 2)])
def test_every_update_goes_through_the_same_pieces(
    tmp_path: Path, calls: Counter[str], run: Callable[[Path], None], stages: int
) -> None:
    run(tmp_path)

    passes = UPDATES * MICRO_BATCHES * stages
    assert calls["_Step.run"] == calls["PipelineExecutor.run"] == UPDATES
    assert calls["TrainingStage.forward"] == calls["TrainingStage.backward"] == passes
    assert calls["GradientTree.collect"] >= passes
    assert calls["Replicas.reduce"] >= UPDATES
    assert calls["prefetch"] == 1
