"""Options without effect on this device: a run stores them and reports each once."""

import json
from pathlib import Path

import pytest
from support.inactive_option_cases import IPU_OPTIONS
from support.run_convoy import TINY, CommandResult, convoy

from convoy.config.option import Support
from convoy.config.schema import option_table

ON_CUDA = {
    "exchange_memory_target": "cycles",
    "available_memory_proportion": (0.5,),
    "gcl_method": "broadcast",
}
REQUESTED = ON_CUDA | {name: value for name, _, value in IPU_OPTIONS}
WORDS = [word for name in REQUESTED for word in option_table()[name].to_cli_args(REQUESTED[name])]
UNAVAILABLE = [row for row in option_table().values() if row.support is not Support.EVERYWHERE]


def no_effect_notices(run: Path) -> list[str]:
    """The options that the events of a run name as without effect, in order."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["text"] for event in events if event.get("kind") == "no_effect"]


def digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unavailable") / "run"


@pytest.fixture(scope="module")
def result(run: Path) -> CommandResult:
    return convoy("train", *TINY, *WORDS, "--stop-after=6", "--output", run)


def test_every_option_without_effect_is_tested_here() -> None:
    assert set(REQUESTED) == {row.name for row in UNAVAILABLE}


def test_a_run_names_each_option_once_with_its_reason(result: CommandResult, run: Path) -> None:
    log = (run / "log.txt").read_text()

    assert result.code == 75, result.err
    assert [line.split()[0] for line in no_effect_notices(run)] == [row.flag for row in UNAVAILABLE]
    for row, line in zip(UNAVAILABLE, no_effect_notices(run), strict=True):
        assert line.endswith(row.no_counterpart or row.cuda_effect)
        assert result.out.count(line) == log.count(line) == 1


def test_cuda_options_name_the_device_without_effect(result: CommandResult, run: Path) -> None:
    del result
    lines = [line for line in no_effect_notices(run) if "CUDA" in line]

    assert [line.split("; ")[0] for line in lines] == [
        f"{row.flag} has no effect with --device cpu"
        for row in UNAVAILABLE
        if row.support is Support.CUDA_ONLY
    ]


def test_the_run_resumes_bit_exactly_and_reports_only_what_is_typed_again(
    result: CommandResult, run: Path, tmp_path: Path
) -> None:
    assert result.code == 75
    before = no_effect_notices(run)
    resumed = convoy("resume", run, "--num-io-tiles=64")
    assert convoy("train", *TINY, "--output", tmp_path / "plain").code == 0
    saved = json.loads((run / "plan.json").read_text())["options"]

    assert resumed.code == 0, resumed.err
    assert [line.split()[0] for line in no_effect_notices(run)[len(before) :]] == ["--num-io-tiles"]
    assert digest(run) == digest(tmp_path / "plain")
    assert saved["scheduling_algorithm"]["value"] == "clustering"
    assert saved["num_io_tiles"]["value"] == 64


def test_an_automatic_device_counts_like_an_explicit_one(tmp_path: Path) -> None:
    result = convoy("train", *TINY, "--select-devices=0", "--output", tmp_path / "run")
    planned = json.loads((tmp_path / "run" / "plan.json").read_text())["without_effect"]

    assert result.code == 0, result.err
    assert no_effect_notices(tmp_path / "run") == [
        "--select-devices has no effect with --device cpu"
    ]
    assert planned == []  # a plan does not know the device


def test_disabled_options_are_not_reported(tmp_path: Path) -> None:
    words = ("--no-half-partial", "--no-enable-conv-dithering")
    result = convoy("train", *TINY, *words, "--output", tmp_path / "run")

    assert (result.code, no_effect_notices(tmp_path / "run")) == (0, [])
