"""What a pipeline of the user's own stages puts into its outfeed."""

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.user_pipelines import (
    BATCH,
    CLASSES,
    Chain,
    make_data,
    make_optimizer,
    make_pipeline,
    run_once,
)

import convoy


def test_the_outfeed_receives_the_outputs_of_each_micro_batch() -> None:
    logits, labels = run_once()

    assert logits.shape == (4, BATCH, CLASSES) and not logits.requires_grad
    assert torch.equal(labels, make_data()[1][:4])


def test_the_last_outputs_replace_earlier_ones() -> None:
    logits, labels = run_once(outfeed=convoy.Outfeed("last"))

    assert logits.shape == (BATCH, CLASSES) and torch.equal(labels, make_data()[1][3])


def test_the_outfeed_receives_the_loss_of_each_micro_batch() -> None:
    logits, labels = run_once()

    losses = run_once(outfeed_loss=True)

    expected = [F.cross_entropy(*pair) for pair in zip(logits, labels, strict=True)]
    assert losses.tolist() == [loss.item() for loss in expected]


def test_masked_outputs_are_not_enqueued() -> None:
    logits, labels = run_once()

    assert torch.equal(run_once(outfeed_mask=[False, True]), logits)
    assert torch.equal(run_once(outfeed_mask=[True, False]), labels)


def with_names(network: Chain) -> list[Any]:
    return [
        lambda images, labels: {"hidden": network.first(images), "labels": labels},
        lambda *, labels, hidden: {"labels": labels, "logits": network.second(hidden)},
    ]


def test_dictionaries_keep_their_names() -> None:
    logits, labels = run_once()
    network = Chain(dropout=0)

    def run(**options: Any) -> Any:
        return run_once(
            stages=with_names(network),
            optimizer=make_optimizer("momentum", network),
            loss_fn=lambda logits, labels: F.cross_entropy(logits, labels),
            **options,
        )

    results = run()

    assert list(results) == ["labels", "logits"]
    assert torch.equal(results["logits"], logits) and torch.equal(results["labels"], labels)
    assert list(run(outfeed_mask=[True, False])) == ["logits"]


@pytest.mark.parametrize(
    ("choice", "dtypes"),
    [
        (None, [torch.float32, torch.int64]),
        (torch.float64, [torch.float64, torch.float64]),
        (lambda output: None if output.dim() == 1 else torch.float64, [torch.float64, torch.int64]),
    ],
)
def test_accumulated_outputs_are_enqueued_once_per_update(
    choice: Any, dtypes: list[torch.dtype]
) -> None:
    single = run_once(repeat_count=2)

    sums = run_once(repeat_count=2, accumulate_outfeed=True, accumulate_outfeed_dtype=choice)

    assert [item.dtype for item in sums] == dtypes
    for item, values in zip(sums, single, strict=True):
        expected = values.to(item.dtype).unflatten(0, (2, 4))
        assert torch.equal(
            item, ((expected[:, 0] + expected[:, 1]) + expected[:, 2]) + expected[:, 3]
        )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_sums_of_integers_do_not_overflow(dtype: torch.dtype) -> None:
    outfeed = convoy.Outfeed()
    value = True if dtype is torch.bool else torch.iinfo(dtype).max
    convoy.pipeline(
        [lambda inputs: inputs + 1, lambda _: torch.full((2,), value, dtype=dtype)],
        convoy.Infeed(torch.zeros(4, 1)),
        outfeed,
        gradient_accumulation=4,
        accumulate_outfeed=True,
    )()

    assert outfeed.dequeue().tolist() == [[4 * value] * 2]


def test_accumulated_losses_are_enqueued_once_per_update() -> None:
    losses = run_once(repeat_count=2, outfeed_loss=True).view(2, 4)

    sums = run_once(repeat_count=2, outfeed_loss=True, accumulate_outfeed=True)

    assert sums.tolist() == pytest.approx(losses.sum(1).tolist(), rel=1e-6)


def test_results_are_streamed_while_a_pipeline_runs() -> None:
    """With a buffer of one result, the pipeline cannot end before the first results are read."""
    outfeed, seen = convoy.Outfeed(buffer_depth=1), list[float]()
    reader = threading.Thread(target=lambda: seen.extend(map(float, outfeed.stream())))
    reader.start()

    make_pipeline(outfeed=outfeed, outfeed_loss=True, repeat_count=3)[0]()
    outfeed.close()
    reader.join(60)

    assert seen == run_once(outfeed_loss=True, repeat_count=3).tolist()
