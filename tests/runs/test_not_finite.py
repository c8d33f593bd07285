"""Non-finite values: all processes stop before the update or skip it."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, CommandResult, convoy

from convoy.checkpoint.store import CheckpointStore
from convoy.data.loader import MicroBatchIndex, SampleOrder
from convoy.planning.topology import BatchPlan

WORDS = [item for item in TINY if not item.startswith("--gradient")]
LAYOUTS = {
    "single": ("--gradient-accumulation=2",),
    "replicas": ("--gradient-accumulation=1", "--replicas=2"),
    "stages": ("--gradient-accumulation=2", "--shards=2"),
}
FIRST_LAYER = {"replicas": "conv1", "stages": "layer2/0/bn1"}  # of rank 1
FAULTS = "CONVOY_TEST_FAULTS"


def train(run: Path, *words: str, faults: str = "") -> CommandResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS, faults)
        return convoy("train", *WORDS, *words, "--output", run)


def summary(run: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((run / "summary.json").read_text())
    return record


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def healthy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("healthy") / "run"
    assert train(run, *LAYOUTS["single"]).code == 0
    return run


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "more"),
    [
        pytest.param("replicas", (), marks=pytest.mark.evidence),  # the next test stops it too
        ("replicas", ("--bn-span=2", "--enable-recompute")),
        pytest.param(
            *("replicas", ("--overlap-reduction", "--enable-optimizer-rts")),
            marks=pytest.mark.evidence,
        ),
        pytest.param("stages", (), marks=pytest.mark.evidence),  # the next test stops it too
        pytest.param("stages", ("--no-enable-recompute",), marks=pytest.mark.evidence),
        ("stages", ("--pipeline-schedule=zero-bubble",)),
    ],
)
def test_a_nan_on_one_process_stops_all_before_the_update_and_is_named(
    layout: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = train(run, *LAYOUTS[layout], *more, faults="poison@7:1")
    last = CheckpointStore(run / "checkpoints").updates()[-1]
    coordinates, micro = _coordinates_and_micro_batch(layout)

    assert result.code == 5
    assert result.err.startswith(
        f"convoy: update 8: the outputs of layer {FIRST_LAYER[layout]} are not finite"
    )
    assert (
        f" of micro-batch {micro}, on rank 1 ({coordinates}); the update was not applied"
        in result.err
    )
    assert result.err.count("\n") == 1
    assert (last, summary(run)["exit_reason"]) == (7, "NotFiniteError")


def _coordinates_and_micro_batch(layout: str) -> tuple[str, int]:
    return ("replica 1, stage 0", 2) if layout == "replicas" else ("replica 0, stage 1", 1)


@pytest.mark.processes
@pytest.mark.parametrize("layout", ["replicas", "stages"])
def test_the_checkpoint_before_a_nan_resumes_bit_exactly(
    layout: str, healthy_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped = train(run, *LAYOUTS[layout], faults="poison@7:1")
    resumed = convoy("resume", run)

    assert (stopped.code, resumed.code) == (5, 0)
    assert "resuming after update 7" in resumed.out
    assert summary(run)["weights_sha256"] == summary(healthy_run)["weights_sha256"]
    assert summary(run)["skipped_updates"] == 0


@pytest.mark.parametrize("seed", [0, 5])
def test_the_reported_samples_are_those_of_the_micro_batch(seed: int, tmp_path: Path) -> None:
    result = train(tmp_path / "run", *LAYOUTS["single"], f"--seed={seed}", faults="poison@3")
    order = SampleOrder(96, BatchPlan(8, 2, 1), seed)
    first = order.ids(MicroBatchIndex(update=3, micro=0))[0]

    assert result.code == 5
    assert f"for sample {first} of micro-batch 1, on rank 0 (replica 0, stage 0)" in result.err


def test_weights_are_never_updated_with_non_finite_gradients(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--gradient-accumulation=2", "--lr=1e30")
    done = CheckpointStore(tmp_path / "run" / "checkpoints").updates()[-1]

    assert result.code == 5
    assert f"update {done + 1}: the " in result.err
    assert CheckpointStore(tmp_path / "run" / "checkpoints").load(done).update == done


@pytest.mark.processes
def test_a_skipped_update_leaves_the_same_bits_in_every_layout(
    healthy_run: Path, tmp_path: Path
) -> None:
    for layout, words in LAYOUTS.items():
        result = train(tmp_path / layout, *words, "--on-nonfinite=skip", faults="poison@7:0")
        assert result.code == 0, result.err
        assert (
            "update 8 was skipped: its losses are not finite (1 update skipped so far)"
            in result.out
        )
        assert "skipped updates: 1" in result.out
    first, *others = (summary(tmp_path / layout) for layout in LAYOUTS)
    reports = [lines(tmp_path / layout / "metrics.jsonl") for layout in LAYOUTS]

    assert first["skipped_updates"] == 1
    assert first["weights_sha256"] != summary(healthy_run)["weights_sha256"]
    assert all(other["weights_sha256"] == first["weights_sha256"] for other in others)
    assert all(_without_times(other) == _without_times(reports[0]) for other in reports[1:])


def _without_times(reports: list[dict[str, object]]) -> list[dict[str, object]]:
    timed = ("seconds", "images_per_second")
    return [{key: report[key] for key in report if key not in timed} for report in reports]


def test_a_report_excludes_the_losses_of_a_skipped_update(tmp_path: Path) -> None:
    run, words = tmp_path / "run", ("--gradient-accumulation=2", "--log-freq=1")
    assert train(tmp_path / "healthy", *words).code == 0
    assert train(run, *words, "--on-nonfinite=skip", faults="poison@2").code == 0
    reports, healthy_reports = (
        lines(item / "metrics.jsonl") for item in (run, tmp_path / "healthy")
    )
    rates = [report["learning_rate"] for report in healthy_reports]

    assert [report["skipped"] for report in reports] == [0, 0] + [1] * 10
    assert [report["left_out"] for report in reports] == [0, 0, 1] + [0] * 9
    assert isinstance(reports[2]["loss"], float)
    assert [report["learning_rate"] for report in reports] == [*rates[:3], *rates[2:-1]]
    assert (
        "1 skipped  1 micro-batch with a non-finite loss excluded" in (run / "log.txt").read_text()
    )


def test_too_many_consecutive_skips_stop_the_run(tmp_path: Path) -> None:
    words = ("--gradient-accumulation=2", "--on-nonfinite=skip", "--max-skipped=2")
    twice = train(tmp_path / "twice", *words, faults="poison@3;poison@4")
    thrice = train(tmp_path / "thrice", *words, faults="poison@3;poison@4;poison@5")

    assert (twice.code, summary(tmp_path / "twice")["skipped_updates"]) == (0, 2)
    assert thrice.code == 5
    assert thrice.err.startswith("convoy: update 6: ") and "in the forward pass" in thrice.err
    assert "; consecutive updates skipped before it: 2; " in thrice.err
    assert CheckpointStore(tmp_path / "thrice" / "checkpoints").updates() == [5]


def test_skips_are_saved_in_checkpoints(tmp_path: Path) -> None:
    words = ("--gradient-accumulation=2", "--on-nonfinite=skip")
    train(tmp_path / "reference", *words, faults="poison@4")
    stopped = train(tmp_path / "resumed", *words, "--stop-after=8", faults="poison@4")
    resumed = convoy("resume", tmp_path / "resumed")
    reference, actual = (summary(tmp_path / item) for item in ("reference", "resumed"))

    assert (stopped.code, resumed.code) == (75, 0)
    assert actual["weights_sha256"] == reference["weights_sha256"]
    assert actual["skipped_updates"] == reference["skipped_updates"] == 1


def test_every_value_is_checked_when_traps_are_enabled(healthy_run: Path, tmp_path: Path) -> None:
    words = (*LAYOUTS["single"], "--enable-fp-exceptions")
    clean = train(tmp_path / "clean", *words)
    result = train(tmp_path / "poisoned", *words, faults="poison@7")

    assert (clean.code, result.code) == (0, 5)
    assert summary(tmp_path / "clean")["weights_sha256"] == summary(healthy_run)["weights_sha256"]
    assert "update 8: the outputs of layer conv1 are not finite" in result.err


@pytest.mark.processes
def test_a_value_found_on_one_process_stops_all_processes(tmp_path: Path) -> None:
    words = (*LAYOUTS["stages"], "--enable-fp-exceptions")
    result = train(tmp_path / "run", *words, faults="poison@7:1")

    assert result.code == 5
    assert "on rank 1 (replica 0, stage 1)" in result.err
    assert CheckpointStore(tmp_path / "run" / "checkpoints").updates()[-1] == 7


SCALED = {
    "constant": ("--loss-scaling=1024",),
    "growing": ("--initial-loss-scaling=2", "--loss-scaling=16"),
}


@pytest.mark.processes
@pytest.mark.evidence  # runs in 16 bits test the same in less time
@pytest.mark.parametrize("words", SCALED.values(), ids=SCALED)
def test_a_power_of_two_loss_scale_does_not_change_any_bit(
    words: tuple[str, ...], healthy_run: Path, tmp_path: Path
) -> None:
    for layout, more in LAYOUTS.items():
        result = train(tmp_path / layout, *words, *more)
        assert (result.code, result.err) == (0, "")

        assert (
            summary(tmp_path / layout)["weights_sha256"] == summary(healthy_run)["weights_sha256"]
        )


def test_a_growing_loss_scale_resumes_bit_exactly(tmp_path: Path) -> None:
    # A scale that is not a power of two changes the bits of the weights.
    words = (*LAYOUTS["single"], "--initial-loss-scaling=3", "--loss-scaling=24", "--log-freq=1")
    reference = train(tmp_path / "reference", *words)
    stopped = train(tmp_path / "resumed", *words, "--stop-after=6")
    resumed = convoy("resume", tmp_path / "resumed")
    scales = [line["loss_scale"] for line in lines(tmp_path / "reference" / "metrics.jsonl")]
    again = [line["loss_scale"] for line in lines(tmp_path / "resumed" / "metrics.jsonl")]

    assert (reference.code, stopped.code, resumed.code) == (0, 75, 0)
    assert scales == again == [3.0] * 3 + [6.0] * 3 + [12.0] * 3 + [24.0] * 3
    assert (
        summary(tmp_path / "resumed")["weights_sha256"]
        == summary(tmp_path / "reference")["weights_sha256"]
    )
