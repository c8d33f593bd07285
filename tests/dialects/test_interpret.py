"""A command of another application: what its front asks for, its verb, its options and sources."""

import shlex
from pathlib import Path
from typing import Any

import option_values
import pytest
from golden.mixtures import POPART, PYTORCH, TENSORFLOW, mixtures
from hypothesis import example, given, settings
from hypothesis import strategies as st
from readme_commands import ROWS, Row

from convoy.config.resolve import resolve
from convoy.config.settings import COMMAND_LINE, Setting, from_source, values_of
from convoy.dialects.command import PROGRAMS, identify, split_command
from convoy.dialects.interpret import Interpretation, help_of, interpret, read_launch
from convoy.dialects.launch_request import LaunchRequest
from convoy.errors import ConfigError

FRONTS = list(dict.fromkeys(row.front for row in ROWS if row.start != "python3"))
# In the order of the fronts: hosts, instances, replicas, devices of a replica, and the rest.
EIGHT = {"instances": 8, "replicas": 16, "devices_per_replica": 1, "verbosity": 1}
FOUR_HOSTS = {"hosts": 4, "verbosity": 1, "executable_cache_path": "exec_cache"}
ASKED: list[dict[str, Any]] = [
    {},
    EIGHT,
    {"instances": 4, "replicas": 4, "verbosity": 1},  # its --ipus-per-replica has no value
    FOUR_HOSTS | {"instances": 16, "replicas": 16, "devices_per_replica": 4},
    FOUR_HOSTS | {"instances": 32, "replicas": 64, "devices_per_replica": 1},
    {"instances": 4, "replicas": 4, "devices_per_replica": 4},
    {"instances": 8, "replicas": 8, "devices_per_replica": 2},
    {"instances": 4, "replicas": 4, "devices_per_replica": 4},
    {"instances": 4, "replicas": 4, "devices_per_replica": 1},
    {"hosts": 2, "instances": 2},
    {"profile_dir": "profile_dir"},
    {"instances": 8, "replicas": 16},
]
# The words of each front that are dropped, in order.
EXPORTED = ["-x LD_LIBRARY_PATH", "-x PATH"]
SPREAD = [
    *("TF_CPP_VMODULE", "IPUOF_VIPU_API_TIMEOUT", "--numa-aware=yes", "--vipu-server-host=host2"),
    *("--vipu-partition=p64", "--reset-partition=no", "--update-partition=no", "--tag-output"),
    *("--mca btl_tcp_if_include SUBNET",),
]
DROPPED: list[list[str]] = [
    [],
    ["--numa-aware 1", "--tag-output"],
    ["--numa-aware 1", "--tag-output"],
    [*SPREAD, *EXPORTED, "-x PYTHONPATH"],
    [*SPREAD, "-x LD_LIBRARY_PATH", "-x PYTHONPATH"],
    ["--numa-aware=yes"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--tag-output", "-bind-to none", "-map-by slot", *EXPORTED],
    [],
    [],
]


def asked(request: LaunchRequest) -> dict[str, Any]:
    return {name: setting.value for name, setting in request.settings.items()}


def launch(typed: list[str], environment: dict[str, str] | None = None) -> LaunchRequest:
    variables = environment or {}
    return read_launch(split_command(typed, variables), variables)


def problems_of(request: LaunchRequest) -> list[str]:
    return [str(problem) for problem in request.problems]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.start != "python3"], ids=lambda r: r.line
)
def test_every_front_of_the_readmes_asks_for_what_it_says(row: Row) -> None:
    request = launch([row.line])
    here = FRONTS.index(row.front)
    lacks_a_value = "--ipus-per-replica --mpi" in row.front

    assert asked(request) == ASKED[here]
    assert [one.word for one in request.dropped] == DROPPED[here]
    assert all(one.reason for one in request.dropped)
    assert request.environment == {}
    assert problems_of(request) == lacks_a_value * [
        "--ipus-per-replica needs a value, as in `--ipus-per-replica N`"
    ]


def test_the_tables_of_this_file_are_complete() -> None:
    assert len(ROWS) == 54
    assert len(FRONTS) == len(ASKED) == len(DROPPED)


def test_the_line_without_a_program_is_refused() -> None:
    (row,) = [row for row in ROWS if row.start == "python3"]

    with pytest.raises(ConfigError, match="python3 is followed by --config"):
        split_command([row.line], {})


def test_a_launchers_value_of_a_variable_is_the_nearer_one() -> None:
    request = launch(["A=1 B=1 mpirun -np 2 -x A=2 python3 train.py"])

    assert request.environment == {"A": "2", "B": "1"}


def test_flags_of_the_interpreter_are_dropped() -> None:
    request = launch(["python3 -u -W ignore train.py"])

    assert [one.word for one in request.dropped] == ["-u", "-W ignore"]


def test_a_shell_may_tell_how_many_processes_there_are() -> None:
    around = {"TF_CONFIG": "{", "POPDIST_NUM_TOTAL_REPLICAS": "4", "POPLAR_ENGINE_OPTIONS": "{}"}
    request = launch(["train.py"], around)

    assert asked(request) == {"replicas": 4} and problems_of(request) == []
    assert request.dropped == []


def test_workers_of_a_shell_count_when_they_are_asked_for() -> None:
    around = {"TF_CONFIG": '{"cluster":{"worker":["a:1","b:1"]}}'}

    assert asked(launch(["train.py", "--distributed"], around))["instances"] == 2


def test_launcher_and_variables_have_to_agree() -> None:
    cluster = 'TF_CONFIG={"cluster":{"worker":["a:1","b:1"]}}'
    same = launch(["mpirun", "-H", "a,b", "-x", cluster, "train.py"])
    other = launch([cluster, "mpirun", "-H", "a,b,c", "train.py"])

    assert problems_of(same) == []
    assert {setting.source for setting in same.settings.values()} == {"mpirun"}
    assert problems_of(other) == [
        "hosts: mpirun says 3 and environment TF_CONFIG 2; make them agree",
        "instances: mpirun says 3 and environment TF_CONFIG 2; make them agree",
    ]


def test_problems_of_launchers_and_variables_come_together() -> None:
    request = launch(["TF_CONFIG= poprun --num-replicas x --nope python3 train.py"])

    assert [line.split()[0] for line in problems_of(request)] == [
        "unknown",
        "--num-replicas",
        "TF_CONFIG",
    ]


def test_a_quoted_text_finds_its_variables_around_the_command() -> None:
    command = split_command(["python3 train.py --data-dir $HERE/x"], {"HERE": "/a"})

    assert command.words == ("--data-dir", "/a/x")


PIECES = sorted({word for row in ROWS for word in row.line.split()})


@option_values.LIGHT
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12), st.booleans())
@example(["poprun", "--mpi-local-args='", "--host", "a[0-9", "train.py"], False)
@example(["mpirun", "-x", "TF_CONFIG={}", "-H", "[", "python3", "-m", "."], False)
def test_whatever_is_typed_ends_in_a_request_or_one_line(words: list[str], is_text: bool) -> None:
    try:
        command = split_command([" ".join(words)] if is_text else words, {})
        lines = problems_of(read_launch(command, {}))
        identify(command, {})
    except ConfigError as refused:
        lines = [str(refused)]

    assert all(line.isprintable() for line in lines)


@pytest.fixture(autouse=True)
def _nothing_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spoken(line: str, dialect: str | None = None, **extra: object) -> Interpretation:
    given = from_source(COMMAND_LINE, extra)
    return interpret(split_command(shlex.split(line), {}), {}, dialect, given)


def problems(line: str) -> list[str]:
    return [str(one) for one in spoken(line).asked.problems]


def became(one: Interpretation) -> dict[str, str]:
    return {each.word: each.to for each in one.mapped}


def dropped(one: Interpretation) -> dict[str, str]:
    return {each.word: each.reason for each in one.dropped}


@pytest.mark.parametrize(
    ("program", "verb"),
    [
        ("train.py --model resnet18", "train"),
        ("restore.py --checkpoint-input-path RUN", "resume"),
        ("validate.py --checkpoint-input-path RUN", "validate"),
        ("validation.py --restore-path RUN", "validate"),
        ("weight_avg.py --checkpoint-input-path RUN", "average"),
        ("inference_embedded.py --model resnet", "validate"),
        ("run_benchmark.py --config resnet50", "validate"),
        ("resnet_main.py --size 20", "train"),
        ("resnet_synthetic_benchmark.py --size 20 --mode train", "train"),
        ("resnet_synthetic_benchmark.py --size 20", "validate"),
    ],
)
def test_each_program_has_its_verb(program: str, verb: str) -> None:
    assert spoken(f"python3 {program}").verb == verb


NOT_YET = (
    "data verify",
    "data convert",
    "data even out",
    "serve",
    "request",
    "upload",
    "checkpoint check",
)


@pytest.mark.parametrize(
    ("program", "purpose"),
    [
        (program, purpose.value)
        for programs in PROGRAMS.values()
        for program, purpose in programs.items()
        if purpose.value.startswith(NOT_YET)
    ],
)
def test_a_program_without_a_verb_is_refused_by_name(program: str, purpose: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spoken(f"python3 {program}")

    assert str(refused.value) == f"{program} ({purpose}) is not available in this version"


@pytest.mark.parametrize(
    ("words", "dialect"),
    [
        ("--model resnet", "tensorflow"),  # a family
        ("--model efficientnet --help", "tensorflow"),
        ("--model=efficientnet-b0", "pytorch"),  # a network
        ("--model resnet50 --epochs 3", "pytorch"),
        ("--model resnet --epochs 3", "tensorflow"),
        ("--model squeezenet", "pytorch"),  # both know it, and it is a tie
        ("--config mk2_resnet8_test", "tensorflow"),
        ("--config resnet50", "pytorch"),
    ],
)
def test_the_name_of_a_network_tells_whose_program_it_is(words: str, dialect: str) -> None:
    assert spoken(f"python3 train.py {words}").program.dialect == dialect


def test_a_wish_for_a_dialect_wins_over_all_hints() -> None:
    one = spoken("python3 train.py --config resnet50 --model resnet50", "tensorflow")

    assert one.program.dialect == "tensorflow"


def test_an_option_in_front_wins_and_the_word_is_told() -> None:
    line = "python3 train.py --dataset imagenet --batch-size 8 --epochs 3"
    one = spoken(line, micro_batch_size=16)

    assert one.asked.command_line["micro_batch_size"] == Setting(16, COMMAND_LINE)
    assert dropped(one) == {"--batch-size 8": "an option in front of the command wins"}
    assert "--batch-size 8" not in became(one) and became(one)["--epochs 3"] == "--epoch 3"


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("--iterations 7", "epoch", 2.0),
        ("--epochs 7", "updates", 9),
        ("--base-learning-rate -9", "lr", 0.5),
        ("--abs-learning-rate 3", "base_learning_rate_exponent", -4.0),
        ("--logs-per-epoch 3", "log_freq", 5),
    ],
)
def test_an_option_in_front_wins_over_its_rival(word: str, name: str, value: object) -> None:
    one = spoken(f"python3 train.py --dataset imagenet {word}", **{name: value})
    resolved = values_of(resolve(one.asked).settings)

    assert resolved[name] == value
    assert word in dropped(one)


def test_an_option_in_front_that_says_the_same_leaves_the_word_in_place() -> None:
    one = spoken("python3 train.py --dataset imagenet --batch-size 8", micro_batch_size=8)

    assert became(one)["--batch-size 8"] == "--micro-batch-size 8"
    assert dropped(one) == {}


def test_a_word_that_did_several_things_keeps_the_others() -> None:
    line = "python3 train.py --dataset cifar-10 --generated-data"
    whats = [one.to for one in spoken(line, samples=64).mapped]

    assert "--data generated" in whats and "--num-classes 10" in whats
    assert not any(what.startswith("--samples") for what in whats)


def test_a_launcher_decides_how_many_replicas_there_are() -> None:
    line = "python3 train.py --config mk2_resnet50_gn_16ipus"
    given = spoken(f"poprun --num-instances 2 --num-replicas 4 {line}").asked.command_line

    assert given["replicas"] == Setting(4, "poprun")
    assert given["instances"] == Setting(2, "poprun")


def test_a_launcher_of_instances_alone_multiplies_the_replicas_of_each() -> None:
    line = "mpirun -np 3 python3 train.py --dataset imagenet --replicas 2"

    assert spoken(line).asked.command_line["replicas"].value == 6


@pytest.mark.parametrize(
    ("words", "stages"),
    [("--dataset imagenet", 1), ("--config mk2_resnet50_bn_16ipus", 4)],
)
def test_a_launcher_and_its_program_must_agree_on_devices(words: str, stages: int) -> None:
    assert problems(f"poprun --num-replicas 2 --ipus-per-replica 2 python3 train.py {words}") == [
        f"poprun devices of a replica: 2, but the program asks for stages: {stages}; "
        "make them agree"
    ]


def test_devices_that_are_the_stages_are_no_problem() -> None:
    poprun = "poprun --num-replicas 4 --ipus-per-replica"

    assert problems(f"{poprun} 4 python3 train.py --config mk2_resnet50_bn_16ipus") == []
    assert problems(f"{poprun} 1 python3 train.py --config resnet50_mlperf_pod16") == []


def test_what_a_launcher_says_beside_is_told() -> None:
    line = "gc-profile -d here -- poprun -v --num-replicas 1 python3 train.py --model resnet18"

    assert dropped(spoken(line)) == {
        "gc-profile: profile dir": "a profile lies in the run's folder",
        "poprun: verbosity": "`--progress` says how much is shown",
    }


def test_validation_takes_the_batch_of_training_and_weights_as_they_begin() -> None:
    fresh = spoken("python3 validation.py --config mk2_resnet50_gn_16ipus").asked.command_line
    small = spoken("python3 validation.py --dataset imagenet --batch-size 5").asked.command_line

    assert fresh["valid_batch_size"].value == 8
    assert fresh["random_weights"] == Setting(True, "no checkpoint was named")
    assert small["valid_batch_size"].value == 5


def test_validation_of_a_run_has_its_weights() -> None:
    one = spoken("python3 validation.py --batch-size 5 --valid-batch-size 7 --restore-path RUN")

    assert one.target == "RUN"
    assert "random_weights" not in one.asked.command_line
    assert one.asked.command_line["valid_batch_size"].value == 7


def test_a_training_has_no_need_of_a_run_and_says_so() -> None:
    one = spoken("python3 train.py --dataset imagenet --restore-path RUN")

    assert dropped(one) == {
        "RUN": "a training begins anew; restore.py goes on, and validates what it wrote"
    }


def test_a_configuration_of_inference_is_taken_by_inference_alone() -> None:
    infers, trains = (
        spoken("run_benchmark.py --config resnet50"),
        spoken("train.py --config resnet50"),
    )
    only = spoken("train.py --config resnet50-mk2 --model resnet50")

    assert (infers.config, trains.config) == ("inference/resnet50", "resnet50")
    assert infers.asked.named["micro_batch_size"].value == 90
    assert trains.asked.named["micro_batch_size"].value == 18
    assert only.config == "inference/resnet50-mk2"


def test_words_win_over_a_configuration_and_that_over_the_dialect() -> None:
    one = spoken("python3 train.py --config mk2_resnet50_gn_16ipus --epochs 50")
    settings = resolve(one.asked).settings

    assert settings["epoch"] == Setting(50.0, COMMAND_LINE)
    assert settings["replicas"].source.startswith("config mk2_resnet50_gn_16ipus, line ")
    assert settings["batchnorm_momentum"] == Setting(0.03, "dialect tensorflow")


def test_variables_are_for_the_run_and_for_what_they_say() -> None:
    one = spoken("DATA_DIR=/data MINE=1 python3 train.py --dataset imagenet")

    assert one.environment == {"DATA_DIR": "/data", "MINE": "1"}
    assert resolve(one.asked).settings["data_dir"] == Setting("/data", "environment DATA_DIR")


def test_a_launchers_cache_is_that_of_the_program() -> None:
    line = "TF_POPLAR_FLAGS=--executable_cache_path=kept python3 train.py --dataset imagenet"

    assert spoken(line).asked.command_line["model_cache_path"].value == "kept"


def test_all_problems_come_together() -> None:
    line = "poprun --num-replicas 3 --num-instances 2 python3 train.py --config nobodys --dataset x"

    assert problems(f"{line} --epochs long --modle resnet") == [
        "--num-replicas 3 is not a multiple of --num-instances 2; use --num-replicas 4",
        "unknown option --modle; did you mean --mode, --model, --model-size?",
        "--epochs expects a number, got 'long'",
        "--dataset is one of imagenet, cifar-10, cifar-100, got 'x'",
        "--config 'nobodys' is not shipped, and no configs.yml here defines it; "
        "`convoy configs` lists those shipped",
    ]


def unheard(line: str, dialect: str | None = None) -> set[str]:
    """The options of a command that neither became anything nor were left out."""
    one = spoken(line, dialect)
    told = [*became(one), *dropped(one)]
    typed = {word for word in shlex.split(line) if word.startswith("--")} - {"--config"}
    return {word for word in typed if not any(each.split()[0] == word for each in told)}


@settings(max_examples=100, deadline=None)
@given(mixtures(TENSORFLOW, "train.py", "mk2_resnet50_gn_16ipus", "mk2_resnet8_test"))
def test_no_word_of_a_mixture_goes_unheard(line: str) -> None:
    assert unheard(line, "tensorflow") == set()
    assert unheard(line.replace("train.py", "validation.py"), "tensorflow") == set()


@settings(max_examples=60, deadline=None)
@given(mixtures(PYTORCH, "train.py", "resnet50") | mixtures(POPART, "resnet_main.py"))
def test_no_word_of_the_other_programs_goes_unheard(line: str) -> None:
    assert unheard(line, "popart" if "resnet_main" in line else "pytorch") == set()


@pytest.mark.parametrize("launcher", ["mpirun -np 3", "poprun --num-instances 2 --num-replicas 6"])
def test_a_number_of_replicas_beside_a_launcher_does_not_go_unheard(launcher: str) -> None:
    one = spoken(f"{launcher} python3 train.py --dataset imagenet --replicas 2")

    assert one.asked.command_line["replicas"].value == 6
    assert "--replicas 2" in (became(one) | dropped(one))


def test_replicas_that_shards_are_counted_with_do_not_go_unheard() -> None:
    line = "python3 validation.py --dataset imagenet --replicas 4 --shards 2 --pipeline"

    assert became(spoken(line))["--replicas 4"] == "--replicas 8"


def test_help_is_wished_for_whatever_else_is_said() -> None:
    one = spoken("python3 train.py --dataset imagenet --help")

    assert one.wants_help and not spoken("python3 train.py --dataset imagenet").wants_help
    assert help_of(one.program).startswith("usage: train.py ")
    assert "--model-size" in help_of(one.program)
    assert "--micro-batch-size" in help_of(spoken("python3 train.py -h").program)
