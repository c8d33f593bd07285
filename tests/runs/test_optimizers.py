"""Runs with every optimizer: sharded, offloaded, stopped and resumed."""

import json
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

OPTIMIZERS = ("sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")
# Two updates of four micro-batches.
SMALL = [item for item in TINY if "accum" not in item and "epoch" not in item]
SMALL += ["--updates=2", "--warmup-epoch=0", "--gradient-accumulation=4"]
TWO_REPLICAS = [
    "--replicas=2",
    "--gradient-accumulation=2",
    "--enable-optimizer-rts",
    "--offload-optimizer",
]


def trained(run: Path, *words: str) -> str:
    result = convoy("train", *SMALL, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    digest: str = json.loads((run / "summary.json").read_text())["weights_sha256"]
    return digest


def optimizer_state(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/update-2/optimizer.safetensors")


NORMAL = [*zip(OPTIMIZERS, cycle(["float32", "bfloat16"]), strict=False)]
SWEEP = [
    case if case in NORMAL else pytest.param(*case, marks=pytest.mark.evidence)
    for case in product(OPTIMIZERS, ["float32", "bfloat16"])
]


@pytest.mark.processes
@pytest.mark.parametrize(("optimizer", "state"), SWEEP)
def test_two_replicas_with_sharded_state_give_the_weights_of_one_process(
    tmp_path: Path, optimizer: str, state: str
) -> None:
    words = (f"--optimizer={optimizer}", f"--optimizer-state-dtype={state}")
    single = trained(tmp_path / "single", *words)
    sharded = trained(tmp_path / "sharded", *words, *TWO_REPLICAS)
    single_state = optimizer_state(tmp_path / "single")
    sharded_state = optimizer_state(tmp_path / "sharded")

    assert sharded == single != trained(tmp_path / "sgd", "--momentum=0.5")
    assert {str(item.dtype) for item in single_state.values()} == {f"torch.{state}"}
    assert all(torch.equal(sharded_state[name], item) for name, item in single_state.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_stopped_run_resumes_bit_exactly(tmp_path: Path, optimizer: str) -> None:
    words, run = (f"--optimizer={optimizer}", "--optimizer-state-dtype=float16"), tmp_path / "run"
    expected = trained(tmp_path / "reference", *words)
    assert convoy("train", *SMALL, *words, "--stop-after=1", "--output", run).code == 75
    assert convoy("resume", run).code == 0

    assert json.loads((run / "summary.json").read_text())["weights_sha256"] == expected


def test_the_options_of_an_optimizer_change_the_weights(tmp_path: Path) -> None:
    variants = {
        "sgd": [["--weight-decay-spares=norms"], ["--weight-decay-spares=nothing"]],
        "adamw": [["--optimizer-eps=0.1"], ["--weight-decay=0.3"]],
        "rmsprop": [["--rmsprop-decay=0.5"], ["--rmsprop-base-decay-exp=-7"]],
        "rmsprop_tf": [["--optimizer-eps=0.1"], ["--momentum=0"]],
        "lars": [
            ["--lars-eeta=0.5"],
            ["--lars-epsilon=3"],
            ["--lars-weight-decay=0.3"],
            ["--lars-skip-list", "conv1"],
        ],
    }
    digests = [
        trained(tmp_path / f"{optimizer}-{number}", f"--optimizer={optimizer}", *words)
        for optimizer, choices in variants.items()
        for number, words in enumerate([[], *choices])
    ]

    assert len(set(digests)) == len(digests)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert convoy("train", *SMALL, "--stop-after=1", "--output", run).code == 75
    result = convoy("resume", run, "--optimizer=adamw", "--override")

    assert result.code == 4
    assert "was saved with --optimizer sgd, which is incompatible with adamw" in result.err
