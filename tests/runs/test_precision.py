"""Runs in 16 bits: bit-identical in every layout and after a resume."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy
from torch import Tensor

# Six updates of four micro-batches.
SMALL = [item for item in TINY if "accum" not in item and "epoch" not in item]
SMALL += ["--updates=6", "--warmup-epoch=0", "--gradient-accumulation=4"]
LAYOUTS = {
    "replicas": ["--replicas=2", "--gradient-accumulation=2", "--enable-optimizer-rts"],
    "stages": ["--shards=2", "--offload-optimizer"],
    "recomputed": ["--enable-recompute", "--offload-optimizer"],
}
MODES = {
    "16.32": ["--precision=16.32", "--loss-scaling=128"],
    "16.16": ["--precision=16.16", "--loss-scaling=128"],
    "16.16 stochastic": ["--precision=16.16", "--enable-stochastic-rounding"],
    "bfloat16 stochastic": [
        *("--precision=16.16", "--half-type=bfloat16", "--enable-stochastic-rounding"),
        *("--optimizer-state-dtype=weights", "--full-precision-norm"),
    ],
    "copies": ["--precision=16.16", "--offload-fp32-weight-copy", "--force-weight-to-fp16=conv1"],
    "partial sums": [
        *("--precision=16.32", "--half-arithmetic=emulated", "--half-partial"),
        *("--saturate-on-overflow", "--loss-scaling=4194304"),
    ],
    # The initial scale is far too high, so updates are skipped and the scale is halved.
    "automatic": ["--precision=16.16", "--auto-loss-scaling", "--loss-scaling=1048576"],
    "growing": ["--precision=16.16", "--initial-loss-scaling=16", "--loss-scaling=64"],
}


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def trained(run: Path, *words: str) -> str:
    result = convoy("train", *SMALL, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    return str(summary(run)["weights_sha256"])


def guard_state(run: Path, update: int = 6) -> dict[str, Any]:
    """The loss scale and skipped updates of a checkpoint."""
    state = json.loads((run / f"checkpoints/update-{update}/state.json").read_text())
    found: dict[str, Any] = state["step_guard"]
    return found


def weights(run: Path) -> dict[str, Tensor]:
    model = load_file(run / "checkpoints/update-6/model.safetensors")
    return {name: item for name, item in model.items() if "running" not in name}


def is_half(values: Tensor, dtype: torch.dtype = torch.float16) -> bool:
    return torch.equal(values.to(dtype).float(), values)


def assert_same_weights(folder: Path, mode: str, layouts: list[str]) -> None:
    expected = trained(folder / "one process", *MODES[mode])

    for layout in layouts:
        assert trained(folder / layout, *MODES[mode], *LAYOUTS[layout]) == expected, layout
        assert guard_state(folder / layout) == guard_state(folder / "one process")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "layout"), [*zip(MODES, cycle(["replicas", "stages"]), strict=False)]
)
def test_every_mode_gives_the_weights_of_one_process(
    tmp_path: Path, mode: str, layout: str
) -> None:
    assert_same_weights(tmp_path, mode, [layout, "recomputed"])


@pytest.mark.processes
@pytest.mark.evidence
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_weights_in_every_layout(tmp_path: Path, mode: str) -> None:
    assert_same_weights(tmp_path, mode, list(LAYOUTS))


@pytest.mark.parametrize("mode", ["16.32", "bfloat16 stochastic", "automatic", "growing"])
def test_a_run_stopped_anywhere_resumes_bit_exactly(tmp_path: Path, mode: str) -> None:
    expected = trained(tmp_path / "reference", *MODES[mode])

    for stop in (1, 3):
        run = tmp_path / f"stopped-{stop}"
        words = (*SMALL, *MODES[mode], f"--stop-after={stop}")
        assert convoy("train", *words, "--output", run).code == 75
        assert convoy("resume", run).code == 0
        assert summary(run)["weights_sha256"] == expected
        assert guard_state(run) == guard_state(tmp_path / "reference")


@pytest.mark.processes
def test_native_16_bit_training_is_bit_identical_in_two_stages(tmp_path: Path) -> None:
    """Native 16-bit arithmetic is slow on a CPU, so the run is very short."""
    few = ("--micro-batch-size=2", "--gradient-accumulation=2", "--samples=8", "--updates=1")
    words = ("--precision=16.16", "--half-arithmetic=native", *few)
    expected = trained(tmp_path / "single", *words)

    assert trained(tmp_path / "two", *words, "--shards=2") == expected
    assert trained(tmp_path / "emulated", *words, "--half-arithmetic=emulated") != expected


def test_every_mode_gives_different_weights(tmp_path: Path) -> None:
    found = {mode: trained(tmp_path / mode, *words) for mode, words in MODES.items()}
    found["32.32"] = trained(tmp_path / "plain")

    assert len(set(found.values())) == len(found)


def test_infinite_gradients_skip_updates_and_halve_the_scale(tmp_path: Path) -> None:
    trained(tmp_path / "run", *MODES["automatic"])
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    reported = [event["text"] for event in events if event.get("kind") == "loss_scale"]
    skipped = summary(tmp_path / "run")["skipped_updates"]

    assert skipped >= 2
    assert reported[0] == (
        "loss scale halved to 524,288 at update 1: gradients are not finite, so the update is "
        "skipped"
    )
    assert guard_state(tmp_path / "run")["skipped"] == skipped
    assert guard_state(tmp_path / "run")["dynamic_scale"] < 1048576 / 2**skipped * 2


def test_weights_are_stored_in_the_configured_dtype(tmp_path: Path) -> None:
    for mode in ("16.32", "16.16", "bfloat16 stochastic", "copies"):
        trained(tmp_path / mode, *MODES[mode])
    bfloat16 = weights(tmp_path / "bfloat16 stochastic")
    norms = [name for name in bfloat16 if "bn" in name]
    copies = weights(tmp_path / "copies")

    assert not is_half(weights(tmp_path / "16.32")["fc.weight"])
    assert all(map(is_half, weights(tmp_path / "16.16").values()))
    assert norms
    assert not all(is_half(bfloat16[name], torch.bfloat16) for name in norms)
    assert all(is_half(bfloat16[name], torch.bfloat16) for name in bfloat16 if name not in norms)
    assert is_half(copies["conv1.weight"])
    assert not is_half(copies["fc.weight"])


@pytest.mark.parametrize("mode", ["16.32", "16.16"])
def test_a_checkpoint_is_validated_as_in_training(tmp_path: Path, mode: str) -> None:
    run = tmp_path / "run"
    words = [item for item in SMALL if "validation" not in item]
    result = convoy("train", *words, *MODES[mode], "--output", run)
    in_training = json.loads((run / "validation.jsonl").read_text().splitlines()[-1])
    separate = json.loads(convoy("validate", run, "--json").out)[-1]

    assert result.code == 0
    assert separate["weights_sha256"] == summary(run)["weights_sha256"]
    assert (separate["top1"], separate["loss"]) == pytest.approx(
        (in_training["top1"], in_training["loss"])
    )


def test_a_run_cannot_be_resumed_in_another_precision(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert convoy("train", *SMALL, "--stop-after=2", "--output", run).code == 75
    result = convoy("resume", run, "--precision=16.16")

    assert result.code == 2
    assert "--precision" in result.err


def test_frozen_weights_are_used_in_16_bits_too(tmp_path: Path) -> None:
    words = ("--variable-filter=fc",)
    trained(tmp_path / "half", *MODES["16.16"], *words)
    trained(tmp_path / "mixed", *MODES["16.32"], *words)

    assert all(map(is_half, weights(tmp_path / "half").values()))
    assert not is_half(weights(tmp_path / "mixed")["conv1.weight"])  # stored in 32 bits


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ("--optimizer=sgd", ("--optimizer sgd_combined", "incompatible with sgd")),
        ("--loss-velocity-scaling-ratio=4", ("ratio 1", "incompatible with 4")),
    ],
)
def test_optimizer_state_with_another_meaning_is_never_loaded(
    tmp_path: Path, change: str, facts: tuple[str, str]
) -> None:
    run = tmp_path / "run"
    words = ("--optimizer=sgd_combined", "--loss-scaling=1024", "--stop-after=2")
    assert convoy("train", *SMALL, *words, "--output", run).code == 75
    result = convoy("resume", run, change, "--override")

    assert result.code == 4
    assert all(fact in result.err for fact in facts), result.err


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(), *LAYOUTS.values()], ids=["single", *LAYOUTS])
def test_infinite_weights_are_not_saved(tmp_path: Path, layout: tuple[str, ...]) -> None:
    words = (*SMALL, "--precision=16.16", "--lr=1e6", *layout)
    result = convoy("train", *words, "--output", tmp_path / "run")

    assert result.code == 5
    assert "the weights are not finite after update 1, so there is nothing to save" in result.err
    assert list((tmp_path / "run/checkpoints").iterdir()) == []
