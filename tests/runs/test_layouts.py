"""Whole runs in several processes: the same bits, one voice, and a clean end whatever happens."""

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

# TINY with four micro-batches an update, measured and reported often.
WORDS = [one for one in TINY if not one.startswith(("--gradient", "--validation", "--epoch"))]
WORDS += ["--validation-mode=during", "--updates=4", "--logs-per-epoch=2"]

LAYOUTS = {
    "two stages": ("--shards=2", "--gradient-accumulation=4"),
    "two stages grouped": (
        "--shards=2",
        "--gradient-accumulation=4",
        "--pipeline-schedule=grouped",
        "--no-enable-recompute",
    ),
    "three stages, a cut inside a block": (
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
    "two replicas of two stages that exchange early": (
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


def read_untimed_records(path: Path) -> list[dict[str, object]]:
    """The lines of a file without what is a matter of time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    timely = ("time", "seconds", "images_per_second")
    return [{key: value for key, value in line.items() if key not in timely} for line in lines]


def summary(run: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((run / "summary.json").read_text())
    return record


@pytest.fixture(scope="module")
def single_process_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    assert convoy("train", *WORDS, "--gradient-accumulation=4", "--output", run).code == 0
    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_to_the_same_bits_and_reports_the_same(
    layout: str, single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    said = convoy("train", *WORDS, *LAYOUTS[layout], "--output", run)
    ours, theirs = summary(run), summary(single_process_run)

    assert (said.code, said.err) == (0, "")
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert (ours["top1"], ours["top5"]) == (theirs["top1"], theirs["top5"])
    assert read_untimed_records(run / "metrics.jsonl") == read_untimed_records(
        single_process_run / "metrics.jsonl"
    )
    assert read_untimed_records(run / "validation.jsonl") == read_untimed_records(
        single_process_run / "validation.jsonl"
    )


OTHERWISE = {
    "statistics over two replicas": ("--replicas=2", "--gradient-accumulation=2", "--bn-span=2"),
    "sums in 16 bits": ("--gradient-accumulation=4", "--accumulator-dtype=bfloat16"),
}
AND_WITH = {
    "statistics over two replicas": ("--shards=2",),
    "sums in 16 bits": ("--replicas=2", "--gradient-accumulation=2"),
}


@pytest.mark.parametrize("training", OTHERWISE)
def test_another_training_has_other_bits_and_these_in_every_layout_too(
    training: str, single_process_run: Path, tmp_path: Path
) -> None:
    for name, more in {"one": (), "other": AND_WITH[training]}.items():
        said = convoy("train", *WORDS, *OTHERWISE[training], *more, "--output", tmp_path / name)
        assert (said.code, said.err) == (0, "")
    one, other = summary(tmp_path / "one"), summary(tmp_path / "other")

    assert (
        one["weights_sha256"]
        == other["weights_sha256"]
        != summary(single_process_run)["weights_sha256"]
    )


def test_one_process_prints_and_says_what_the_run_is(tmp_path: Path) -> None:
    words = ("train", *WORDS, *LAYOUTS["two replicas of two stages"], "--output", tmp_path / "run")
    said = convoy_process(*words, scratch=tmp_path)

    assert said.code == 0
    assert said.out.count("ended after update 4: done") == 1
    assert said.out.count("2 replicas × 2 stages") == 1
    assert said.err == ""


SAVED = ("two stages", "two replicas of two stages", "four replicas")


@pytest.mark.parametrize("after", [*SAVED, "alone"])
def test_what_one_layout_saves_any_other_resumes_to_the_same_bits(
    after: str, single_process_run: Path, tmp_path: Path
) -> None:
    layouts = LAYOUTS | {"alone": ("--shards=1", "--replicas=1", "--gradient-accumulation=4")}
    for before in (one for one in layouts if one in (*SAVED, "alone") and one != after):
        run = tmp_path / before.replace(" ", "-")
        halted = convoy("train", *WORDS, *layouts[before], "--stop-after=2", "--output", run)
        plain = ("--shards=1", "--replicas=1", "--no-enable-optimizer-rts")
        went_on = convoy("resume", run, *plain, *layouts[after])
        assert (halted.code, went_on.code, went_on.err) == (75, 0, "")

        assert summary(run)["weights_sha256"] == summary(single_process_run)["weights_sha256"]


def test_a_pipelined_run_is_validated_on_one_device(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    convoy("train", *WORDS, *LAYOUTS["two stages"], "--output", run)
    score = json.loads(convoy("validate", run, "--json").out)[-1]

    assert score["top1"] == summary(run)["top1"] == summary(single_process_run)["top1"]


def test_an_update_of_other_samples_is_refused_when_resuming(
    single_process_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(single_process_run, tmp_path / "run")
    said = convoy("resume", run, "--replicas=2")

    assert said.code == 2
    assert "--gradient-accumulation × --replicas was 4, now 8" in said.err


def test_samples_that_do_not_divide_leave_all_replicas_with_the_same_work(tmp_path: Path) -> None:
    runs = {
        "one": ("--gradient-accumulation=3",),
        "three": ("--replicas=3", "--gradient-accumulation=1"),
    }
    for name, words in runs.items():
        said = convoy("train", *WORDS, *words, "--samples=101", "--output", tmp_path / name)
        assert (said.code, said.err) == (0, "")
    one, three = summary(tmp_path / "one"), summary(tmp_path / "three")

    assert three["images"] == one["images"] == 4 * 3 * 8
    assert three["weights_sha256"] == one["weights_sha256"]
    assert read_untimed_records(tmp_path / "three/metrics.jsonl") == read_untimed_records(
        tmp_path / "one/metrics.jsonl"
    )


def test_a_dead_worker_ends_the_run_and_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", *WORDS, *LAYOUTS["two replicas of two stages"], "--output", run)
    said = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "kill@3:2"})

    assert said.code == 7
    assert "replica 1, stage 0 (rank 2) was killed by SIGKILL" in said.err
    assert "Traceback" not in said.err
    assert convoy("resume", run).code == 0


def test_weights_that_differ_by_one_bit_are_found_before_they_are_saved(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", *WORDS, *LAYOUTS["two replicas"], "--ckpts-per-epoch=1", "--output", run)
    said = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "flip@2:1"})

    assert said.code == 5
    assert "replica 1 (rank 1)" in said.err and "after update 3" in said.err
    assert not list((run / "checkpoints").glob("update-*"))
    assert summary(run)["exit_reason"] == "NumericError"


def test_a_process_that_strays_is_named_with_both_entries(tmp_path: Path) -> None:
    words = ("train", *WORDS, *LAYOUTS["two replicas"], "--output", tmp_path / "run")
    said = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "stray@1:1"})

    assert said.code == 8
    entries = r"rank 0 .*\(stop after update 1\), rank 1 .*\(save after update 1\)"
    assert re.search(entries, said.err), said.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_saves_stops_and_leaves_nobody_behind(
    tmp_path: Path, single_process_run: Path, number: int, code: int
) -> None:
    run = tmp_path / "run"
    words = ["train", *WORDS, *LAYOUTS["two replicas of two stages"], "--output", run]
    process = Process([*words, ENDLESS], tmp_path)
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and read_untimed_records(run / "metrics.jsonl")
    )
    children = psutil.Process(process.pid).children(recursive=True)
    process.send(number)
    said = process.wait()

    assert said.code == code
    assert summary(run)["exit_reason"] in ("preempted", "interrupted")
    wait_until(lambda: not any(_is_running(one) for one in children))
    del single_process_run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_a_signal_to_the_whole_group_saves_too(tmp_path: Path, number: int, code: int) -> None:
    """As `timeout`, a closed terminal and many batch systems send it."""
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
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, err) == (code, "")
    assert list((run / "checkpoints").glob("update-*"))


def test_an_early_interrupt_is_quiet(tmp_path: Path) -> None:
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

    wait_until(lambda: not any(_is_running(one) for one in children))


def test_the_same_program_starts_under_torchrun(single_process_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", *WORDS, "--replicas=2", "--shards=2", "--gradient-accumulation=2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
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
    assert done.stdout.count("ended after update 4: done") == 1


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
def test_what_cannot_be_is_refused_before_anything_starts(
    words: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    samples = "--samples=9600" if "--replicas=70" in words else "--samples=96"
    said = convoy("train", *WORDS, samples, *words, "--output", tmp_path / "run")

    assert said.code == 2
    assert text in said.err
    assert not (tmp_path / "run").exists()


def _is_running(process: psutil.Process) -> bool:
    """Whether a worker is still there; the server they come from goes by itself."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
