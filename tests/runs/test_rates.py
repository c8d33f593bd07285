"""The learning rates of a run are those of its plan, also after a resume."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy

WITHOUT_RATE = [word for word in TINY if not word.startswith("--lr")]
STEP = ("--lr-schedule=step", "--lr-share-decay", "0.5", "0.75")
EVERY_UPDATE = ("--log-freq=1", "--warmup-epoch=0")


def rates(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["learning_rate"] for line in lines]


def digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # 16 samples per update: 2^-9 × 16 = 1/32.
        (
            ("--base-learning-rate-exponent=-9", *STEP, "--lr-multipliers", "1", "2", "0.5"),
            [1 / 32] * 6 + [2 / 32] * 3 + [0.5 / 32] * 3,
        ),
        (
            ("--lr=0.02", "--lr-schedule=exponential", "--lr-decay=0.5", "--lr-drops=3"),
            [0.02] * 4 + [0.01] * 4 + [0.005] * 4,
        ),
        (
            (
                *("--lr=0.03", "--lr-schedule=polynomial", "--poly-lr-decay-power=1"),
                "--abs-end-learning-rate=0.015",
            ),
            [0.03 - 0.015 * update / 12 for update in range(12)],
        ),
    ],
)
def test_a_run_has_the_rates_of_its_options_and_keeps_them_on_resume(
    words: tuple[str, ...], expected: list[float], tmp_path: Path
) -> None:
    reference, resumed = tmp_path / "reference", tmp_path / "resumed"
    options = (*WITHOUT_RATE, *words, *EVERY_UPDATE)
    assert convoy("train", *options, "--output", reference).code == 0
    assert convoy("train", *options, "--stop-after=5", "--output", resumed).code == 75
    result = convoy("resume", resumed)

    assert result.code == 0, result.err
    assert rates(reference) == rates(resumed) == pytest.approx(expected)
    assert digest(reference) == digest(resumed)
