"""Runs in several processes: bit-identical weights, output, failures and signals."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.run_convoy import ENDLESS, PATIENCE, TINY, Process, convoy, convoy_process, wait_until

pytestmark = pytest.mark.processes

# TINY with four micro-batches per update, and frequent validation and reports.
WORDS = [word for word in TINY if not word.startswith(("--gradient", "--validation", "--epoch"))]
WORDS += ["--validation-mode=during", "--updates=4", "--logs-per-epoch=2"]

LAYOUTS = {
    "two stages": ("--shards=2", "--gradient-accumulation=4"),
    "two stages grouped": (
        "--shards=2",
        "--gradient-accumulation=4",
        "--pipeline-schedule=grouped",
        "--no-enable-recompute",
    ),
    "three stages, split inside a block": (
        "--pipeline-splits",
        "layer1/0/bn1",
        "layer3/0/conv2",
        "--pipeline-schedule=sequential",
        "--gradient-accumulation=4",
    ),
    "two replicas": ("--replicas=2", "--gradient-accumulation=2", "--dataloader-worker=2"),
    "two replicas of two stages": (
        "--replicas=2",
        "--shards=2",
        "--gradient-accumulation=2",
        "--enable-optimizer-rts",
        "--offload-optimizer",
        "--max-cross-replica-buffer-size=4096",
    ),
    "two replicas of two stages with overlap": (
        "--replicas=2",
        "--shards=2",
        "--gradient-accumulation=2",
        "--overlap-reduction",
        "--max-cross-replica-buffer-size=65536",
    ),
    "zero-bubble": (
        "--shards=2",
        "--gradient-accumulation=4",
        "--pipeline-schedule=zero-bubble",
    ),
    "looped": (
        "--shards=4",
        "--stages-per-device=2",
        "--gradient-accumulation=4",
        "--pipeline-schedule=looped",
    ),
    "four replicas": ("--replicas=4", "--gradient-accumulation=1", "--enable-recompute"),
}


NORMAL = ("three stages, split inside a block", "two replicas", "looped")
SWEEP = [
    name if name in NORMAL else pytest.param(name, marks=pytest.mark.evidence) for name in LAYOUTS
]


def read_untimed_records(path: Path) -> list[dict[str, object]]:
    """Return the lines of a file without times and rates."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    timed = ("time", "seconds", "images_per_second")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def summary(run: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((run / "summary.json").read_text())
    return record


@pytest.fixture(scope="module")
def single_process_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("single") / "run"
    assert convoy("train", *WORDS, "--gradient-accumulation=4", "--output", run).code == 0
    return run


def assert_same_weights_and_records(run: Path, single_process_run: Path) -> None:
    actual, expected = summary(run), summary(single_process_run)

    assert actual["weights_sha256"] == expected["weights_sha256"]
    assert (actual["top1"], actual["top5"]) == (expected["top1"], expected["top5"])
    assert read_untimed_records(run / "metrics.jsonl") == read_untimed_records(
        single_process_run / "metrics.jsonl"
    )
    assert read_untimed_records(run / "validation.jsonl") == read_untimed_records(
        single_process_run / "validation.jsonl"
    )


@pytest.mark.parametrize("layout", SWEEP)
def test_every_layout_gives_the_same_weights_and_records(
    layout: str, single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = convoy("train", *WORDS, *LAYOUTS[layout], "--output", run)

    assert (result.code, result.err) == (0, "")
    assert_same_weights_and_records(run, single_process_run)


def test_one_process_prints_for_two_replicas_of_two_stages(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", *WORDS, *LAYOUTS["two replicas of two stages"], "--output", run)
    result = convoy_process(*words, scratch=tmp_path)

    assert result.code == 0
    assert result.out.count("finished after update 4") == 1
    assert result.out.count("2 replicas × 2 stages") == 1
    assert result.err == ""
    assert_same_weights_and_records(run, single_process_run)
    score = json.loads(convoy("validate", run, "--json").out)[-1]  # on one device
    assert score["top1"] == summary(run)["top1"]


DIFFERENT_TRAININGS = {
    "statistics over two replicas": ("--replicas=2", "--gradient-accumulation=2", "--bn-span=2"),
    "sums in 16 bits": ("--gradient-accumulation=4", "--accumulator-dtype=bfloat16"),
}
OTHER_LAYOUTS = {
    "statistics over two replicas": ("--shards=2",),
    "sums in 16 bits": ("--replicas=2", "--gradient-accumulation=2"),
}


@pytest.mark.parametrize("training", DIFFERENT_TRAININGS)
def test_a_different_training_gives_different_weights_that_are_equal_in_two_layouts(
    training: str, single_process_run: Path, tmp_path: Path
) -> None:
    words = (*WORDS, *DIFFERENT_TRAININGS[training])
    for name, layout in {"first": (), "second": OTHER_LAYOUTS[training]}.items():
        result = convoy("train", *words, *layout, "--output", tmp_path / name)
        assert (result.code, result.err) == (0, "")
    first, second = summary(tmp_path / "first"), summary(tmp_path / "second")

    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["weights_sha256"] != summary(single_process_run)["weights_sha256"]


RESUMED = {
    name: ("--shards=1", "--replicas=1", "--no-enable-optimizer-rts", *words)
    for name, words in {"one process": ("--gradient-accumulation=4",), **LAYOUTS}.items()
    if name in ("one process", "two stages", "two replicas of two stages", "four replicas")
}


def test_each_layout_resumes_the_checkpoint_of_another(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = convoy("train", *WORDS, *LAYOUTS["two stages"], "--stop-after=1", "--output", run)
    second = convoy("resume", run, *RESUMED["two replicas of two stages"], "--stop-after=2")
    third = convoy("resume", run, *RESUMED["one process"], "--stop-after=3")
    last = convoy("resume", run, *RESUMED["four replicas"])

    assert (first.code, second.code, third.code, last.code) == (75, 75, 75, 0), last.err
    assert first.err == second.err == third.err == last.err == ""
    assert summary(run)["weights_sha256"] == summary(single_process_run)["weights_sha256"]


@pytest.mark.evidence
@pytest.mark.parametrize("after", RESUMED)
def test_every_layout_resumes_the_checkpoints_of_every_other(
    after: str, single_process_run: Path, tmp_path: Path
) -> None:
    for before in (name for name in RESUMED if name != after):
        run = tmp_path / before.replace(" ", "-")
        stopped = convoy("train", *WORDS, *RESUMED[before], "--stop-after=2", "--output", run)
        resumed = convoy("resume", run, *RESUMED[after])
        assert (stopped.code, resumed.code, resumed.err) == (75, 0, "")

        assert summary(run)["weights_sha256"] == summary(single_process_run)["weights_sha256"]


def test_a_changed_number_of_samples_per_update_is_refused_when_resuming(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(single_process_run, tmp_path / "run")
    result = convoy("resume", run, "--replicas=2")

    assert result.code == 2
    assert "--gradient-accumulation × --replicas was 4, now 8" in result.err


def test_replicas_train_on_equally_many_samples_if_the_samples_do_not_divide(
    tmp_path: Path,
) -> None:
    runs = {
        "one": ("--gradient-accumulation=2",),
        "two": ("--replicas=2", "--gradient-accumulation=1"),
    }
    for name, words in runs.items():
        result = convoy("train", *WORDS, *words, "--samples=101", "--output", tmp_path / name)
        assert (result.code, result.err) == (0, "")
    one_replica, two_replicas = summary(tmp_path / "one"), summary(tmp_path / "two")

    assert two_replicas["images"] == one_replica["images"] == 4 * 2 * 8
    assert two_replicas["weights_sha256"] == one_replica["weights_sha256"]
    assert read_untimed_records(tmp_path / "two/metrics.jsonl") == read_untimed_records(
        tmp_path / "one/metrics.jsonl"
    )


def test_a_dead_worker_ends_the_run_and_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", *WORDS, *LAYOUTS["two replicas of two stages"], "--output", run)
    result = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "kill@3:2"})

    assert result.code == 7
    assert "replica 1, stage 0 (rank 2) was killed by SIGKILL" in result.err
    assert "Traceback" not in result.err
    assert convoy("resume", run, *RESUMED["one process"]).code == 0


def test_weights_that_differ_by_one_bit_are_found_before_they_are_saved(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", *WORDS, *LAYOUTS["two replicas"], "--ckpts-per-epoch=1", "--output", run)
    result = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "flip@2:1"})

    assert result.code == 5
    assert "replica 1 (rank 1)" in result.err and "after update 3" in result.err
    assert not list((run / "checkpoints").glob("update-*"))
    assert summary(run)["exit_reason"] == "NumericError"


def test_a_process_at_another_sync_point_is_named_with_both_sync_points(tmp_path: Path) -> None:
    words = ("train", *WORDS, *LAYOUTS["two replicas"], "--output", tmp_path / "run")
    result = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "desync@1:1"})

    assert result.code == 8
    entries = r"rank 0 .*\(stop after update 1\), rank 1 .*\(save after update 1\)"
    assert re.search(entries, result.err), result.err


@pytest.mark.parametrize(
    ("signal_number", "code", "layout"),
    [
        (signal.SIGTERM, 75, "two replicas"),
        (signal.SIGINT, 130, "two stages"),
        pytest.param(
            *(signal.SIGINT, 130, "two replicas of two stages"), marks=pytest.mark.evidence
        ),
    ],
)
def test_a_signal_saves_and_stops_all_processes(
    tmp_path: Path, signal_number: int, code: int, layout: str
) -> None:
    run = tmp_path / "run"
    words = ["train", *WORDS, *LAYOUTS[layout], "--output", run]
    process = Process([*words, ENDLESS], tmp_path)
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and read_untimed_records(run / "metrics.jsonl")
    )
    children = psutil.Process(process.pid).children(recursive=True)
    process.send(signal_number)
    result = process.wait()

    assert result.code == code
    assert summary(run)["exit_reason"] in ("preempted", "interrupted")
    wait_until(lambda: not any(map(_is_running, children)))


@pytest.mark.parametrize(
    "signal_number", [pytest.param(signal.SIGTERM, marks=pytest.mark.evidence), signal.SIGHUP]
)
def test_a_signal_to_the_process_group_saves_too(tmp_path: Path, signal_number: int) -> None:
    """`timeout`, a closed terminal and many batch systems send signals to the group."""
    run = tmp_path / "run"
    words = ["train", *WORDS, *LAYOUTS["two replicas"], "--output", str(run), ENDLESS]
    process = subprocess.Popen(
        [sys.executable, "-m", "convoy", *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and read_untimed_records(run / "metrics.jsonl")
    )
    os.killpg(process.pid, signal_number)
    _, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, err) == (75, "")
    assert list((run / "checkpoints").glob("update-*"))


def test_an_interrupt_during_the_start_prints_no_error(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    words = ["train", *WORDS, *LAYOUTS["two replicas"], "--output", run, ENDLESS]
    process = subprocess.Popen(
        [sys.executable, "-m", "convoy", *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: psutil.Process(process.pid).children(recursive=True))
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, err) == (130, "")


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", *WORDS, *LAYOUTS["two replicas"], "--output", run, ENDLESS]
    process = Process(words, tmp_path)
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and read_untimed_records(run / "metrics.jsonl")
    )
    children = psutil.Process(process.pid).children(recursive=True)
    process.send(signal.SIGKILL)

    wait_until(lambda: not any(map(_is_running, children)))


def test_the_same_program_starts_under_torchrun(single_process_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", *WORDS, "--shards=2", "--gradient-accumulation=4"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "--standalone", "-m", "convoy", *words, "--output", str(run)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert summary(run)["weights_sha256"] == summary(single_process_run)["weights_sha256"]
    assert done.stdout.count("finished after update 4") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--shards=2", "--gradient-accumulation=3"), "multiple of 2"),
        (("--shards=2", "--pipeline-splits", "layer1", "layer2"), "--shards is 2"),
        (("--shards=400",), "400 stages need at least 400 layers"),
        (("--replicas=70",), "limit of 64"),
        (("--replicas=20",), "one update needs 160 samples"),
        (("--replicas=3", "--instances=2"), "does not divide --replicas 3"),
        (("--replicas=2", "--hosts=2", "--instances=2"), "torchrun"),
        (("--replicas=3", "--bn-span=2"), "--bn-span"),
    ],
)
def test_an_impossible_layout_is_refused_before_the_run_starts(
    words: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    samples = "--samples=9600" if "--replicas=70" in words else "--samples=96"
    result = convoy("train", *WORDS, samples, *words, "--output", tmp_path / "run")

    assert result.code == 2
    assert text in result.err
    assert not (tmp_path / "run").exists()


def _is_running(process: psutil.Process) -> bool:
    """Whether a worker still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
