"""Runs with other accumulator dtypes and reductions, in every layout."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from support.run_convoy import TINY, CommandResult, convoy
from torch import Tensor

from convoy.checkpoint.store import find_checkpoint

OPTIONS = [*TINY, "--micro-batch-size=4", "--gradient-accumulation=6", "--warmup-epoch=0"]
ONE_EPOCH = (*OPTIONS, "--epoch=1")  # four updates
TRAININGS = {
    "mean": (),
    "running mean": ("--gradient-reduction=running-mean",),
    "sum": ("--gradient-reduction=sum",),
    "16 bits": ("--gradient-accumulation-dtype=float16",),
    "16 bits, added up": ("--accumulator-dtype=float16", "--gradient-reduction=mean"),
    # The bias is so short that its state fits into one shard.
    "dtype rules": ("--accumulator-dtype-rules", "fc.bias=bfloat16", "*.bn?.*=float16"),
    "divided first": (r"--gradient-mean-reduce-re=.*\.bias",),
}
LAYOUTS = {
    "three replicas": ("--replicas=3", "--gradient-accumulation=2", "--enable-optimizer-rts"),
    "two overlapping replicas of two stages": (
        *("--replicas=2", "--gradient-accumulation=3", "--shards=2"),
        *("--pipeline-schedule=1f1b", "--overlap-reduction"),
    ),
}


def train(run: Path, *words: str) -> Path:
    result = convoy("train", *words, "--output", run)
    assert (result.code in (0, 75), result.err) == (True, "")
    return run


def digest(run: Path) -> str:
    text: str = json.loads((run / "summary.json").read_text())["weights_sha256"]
    return text


def weights(run: Path) -> dict[str, Tensor]:
    return find_checkpoint(run).contents.model


@pytest.fixture(scope="module")
def reference_digests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("single")
    return {name: digest(train(folder / name, *ONE_EPOCH, *TRAININGS[name])) for name in TRAININGS}


def test_every_reduction_and_dtype_gives_different_weights(
    reference_digests: dict[str, str],
) -> None:
    assert len(set(reference_digests.values())) == len(TRAININGS)


NORMAL = [
    ("running mean", "three replicas"),
    ("16 bits", "two overlapping replicas of two stages"),
    ("dtype rules", "three replicas"),
    ("divided first", "two overlapping replicas of two stages"),
]
SWEEP = [
    case if case in NORMAL else pytest.param(*case, marks=pytest.mark.evidence)
    for case in product(TRAININGS, LAYOUTS)
]


@pytest.mark.processes
@pytest.mark.parametrize(("training", "layout"), SWEEP)
def test_every_layout_gives_the_weights_of_one_process(
    training: str, layout: str, reference_digests: dict[str, str], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", *ONE_EPOCH, *TRAININGS[training], *LAYOUTS[layout])

    assert digest(run) == reference_digests[training]


def weights_after_one_update(folder: Path, *words: str) -> dict[str, Tensor]:
    return weights(train(folder, *OPTIONS, "--stop-after=1", *words))


@pytest.mark.parametrize(
    "words",
    [
        ("--accumulator-dtype-rules", "fc.*=bfloat16"),
        (r"--gradient-mean-reduce-re=fc\..*",),
    ],
    ids=["dtype", "divided first"],
)
def test_a_rule_changes_only_the_weights_it_matches(words: tuple[str, ...], tmp_path: Path) -> None:
    """Sums in 16 bits have rounding errors that are large enough to change weights on any CPU."""
    half = "--gradient-accumulation-dtype=float16"
    default = weights_after_one_update(tmp_path / "default", half)
    other = weights_after_one_update(tmp_path / "other", half, *words)
    changed = {name for name, item in default.items() if not torch.equal(item, other[name])}

    assert changed == {"fc.weight", "fc.bias"}
    for name in changed:
        torch.testing.assert_close(other[name], default[name], rtol=0, atol=1e-3)


def test_a_sum_equals_a_mean_with_a_proportionally_higher_rate(tmp_path: Path) -> None:
    no_decay = "--weight-decay=0"
    initial = weights_after_one_update(tmp_path / "initial", no_decay, "--lr=0")
    default = weights_after_one_update(tmp_path / "default", no_decay)
    summed = weights_after_one_update(tmp_path / "sum", no_decay, "--gradient-reduction=sum")
    for name in ("fc.weight", "conv1.weight", "layer2.0.bn1.bias"):
        sum_step, mean_step = summed[name] - initial[name], default[name] - initial[name]

        assert float(mean_step.abs().max()) > 1e-4
        torch.testing.assert_close(sum_step, 6 * mean_step, rtol=1e-3, atol=1e-6)


def train_refused(*words: str) -> CommandResult:
    result = convoy("train", *OPTIONS, *words)
    assert result.code == 2
    return result


def test_invalid_rules_are_refused_before_the_run_starts() -> None:
    result = train_refused("--gradient-mean-reduce-re=(", "--accumulator-dtype-rules=fc.*=half")

    assert "--gradient-mean-reduce-re '(' is not a regular expression: " in result.err
    assert "--accumulator-dtype-rules 'fc.*=half' does not name a dtype; " in result.err


@pytest.mark.parametrize("layout", [(), ("--replicas=2", "--gradient-accumulation=3")], ids=str)
def test_patterns_without_a_match_are_refused_before_the_run_starts(
    layout: tuple[str, ...],
) -> None:
    result = train_refused("--gradient-mean-reduce-re=gamma", *layout)

    assert result.err.count("'gamma' matches no parameter of this model; ") == 1
    assert "Traceback" not in result.err


def test_a_reduction_without_effect_is_reported(tmp_path: Path) -> None:
    words = ("--gradient-accumulation=1", "--gradient-reduction=running-mean")
    run = train(tmp_path / "run", *OPTIONS, "--stop-after=1", *words)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]

    assert [event["text"] for event in events if event.get("kind") == "no_effect"] == [
        "--gradient-reduction has no effect with one micro-batch per update"
    ]


def test_a_run_resumes_bit_exactly_from_a_checkpoint(
    reference_digests: dict[str, str], tmp_path: Path
) -> None:
    words = TRAININGS["dtype rules"]
    run = train(tmp_path / "run", *ONE_EPOCH, *words, "--stop-after=2")
    result = convoy("resume", run)

    assert (result.code, result.err) == (0, "")
    assert digest(run) == reference_digests["dtype rules"]
