"""Interpret commands of the applications: launchers, verb, options and their sources."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import option_values
from support.option_mixtures import POPART, PYTORCH, TENSORFLOW, mixtures
from support.readme_commands import ROWS, Row

from convoy.config.resolve import resolve
from convoy.config.schema import COMMAND_LINE, Setting, setting_values, settings_from
from convoy.dialects.command import PROGRAMS, identify_program, split_command
from convoy.dialects.interpret import Interpretation, interpret, read_launch
from convoy.dialects.launch_request import LaunchRequest
from convoy.errors import ConfigError

LAUNCHER_LINES = list(dict.fromkeys(row.launcher for row in ROWS if row.program != "python3"))
# The settings that each of LAUNCHER_LINES requests.
EIGHT_INSTANCES = {"instances": 8, "replicas": 16, "devices_per_replica": 1, "verbosity": 1}
FOUR_HOSTS = {"hosts": 4, "verbosity": 1, "executable_cache_path": "exec_cache"}
REQUESTED: list[dict[str, Any]] = [
    {},
    EIGHT_INSTANCES,
    {"instances": 4, "replicas": 4, "verbosity": 1},  # --ipus-per-replica has no value
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
# The arguments that are dropped from each of LAUNCHER_LINES.
EXPORTED_VARIABLES = ["-x LD_LIBRARY_PATH", "-x PATH"]
FOUR_HOSTS_DROPPED = [
    *("--numa-aware=yes", "--vipu-server-host=host2", "--vipu-partition=p64"),
    *("--reset-partition=no", "--update-partition=no", "--tag-output"),
    *("--mca btl_tcp_if_include SUBNET",),
]
DROPPED_VARIABLES = ["TF_CPP_VMODULE", "IPUOF_VIPU_API_TIMEOUT"]
DROPPED: list[list[str]] = [
    [],
    ["--numa-aware 1", "--tag-output"],
    ["--numa-aware 1", "--tag-output"],
    [*FOUR_HOSTS_DROPPED, *EXPORTED_VARIABLES, "-x PYTHONPATH", *DROPPED_VARIABLES],
    [*FOUR_HOSTS_DROPPED, "-x LD_LIBRARY_PATH", "-x PYTHONPATH", *DROPPED_VARIABLES],
    ["--numa-aware=yes"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--tag-output", "-bind-to none", "-map-by slot", *EXPORTED_VARIABLES],
    [],
    [],
]


def requested_values(request: LaunchRequest) -> dict[str, Any]:
    return {name: setting.value for name, setting in request.settings.items()}


def launch(typed: list[str], environment: dict[str, str] | None = None) -> LaunchRequest:
    variables = environment or {}
    return read_launch(split_command(typed, variables), variables)


def problem_lines(request: LaunchRequest) -> list[str]:
    return [str(problem) for problem in request.problems]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.program != "python3"], ids=lambda r: r.line
)
def test_every_launcher_of_the_readmes_requests_the_expected_settings(row: Row) -> None:
    request = launch([row.line])
    index = LAUNCHER_LINES.index(row.launcher)
    lacks_a_value = "--ipus-per-replica --mpi" in row.launcher

    assert requested_values(request) == REQUESTED[index]
    assert [word.word for word in request.dropped] == DROPPED[index]
    assert all(word.reason for word in request.dropped)
    assert request.environment == {}
    assert problem_lines(request) == lacks_a_value * [
        "--ipus-per-replica needs a value, as in `--ipus-per-replica N`"
    ]


def test_every_launcher_line_has_expected_values() -> None:
    assert len(ROWS) == 54
    assert len(LAUNCHER_LINES) == len(REQUESTED) == len(DROPPED)


def test_a_command_without_a_program_is_refused() -> None:
    (row,) = [row for row in ROWS if row.program == "python3"]

    with pytest.raises(ConfigError, match="python3 is followed by --config"):
        split_command([row.line], {})


def test_a_variable_set_by_the_launcher_takes_precedence() -> None:
    request = launch(["A=1 B=1 mpirun -np 2 -x A=2 python3 train.py"])

    assert request.environment == {"A": "2", "B": "1"}


def test_flags_of_the_interpreter_are_dropped() -> None:
    request = launch(["python3 -u -W ignore train.py"])

    assert [word.word for word in request.dropped] == ["-u", "-W ignore"]


def test_the_shell_environment_can_set_the_number_of_replicas() -> None:
    shell_variables = {
        "TF_CONFIG": "{",
        "POPDIST_NUM_TOTAL_REPLICAS": "4",
        "POPLAR_ENGINE_OPTIONS": "{}",
    }
    request = launch(["train.py"], shell_variables)

    assert requested_values(request) == {"replicas": 4} and problem_lines(request) == []
    assert request.dropped == []


def test_workers_in_the_shell_environment_count_with_distributed() -> None:
    shell_variables = {"TF_CONFIG": '{"cluster":{"worker":["a:1","b:1"]}}'}

    assert (
        requested_values(launch(["train.py", "--distributed"], shell_variables))["instances"] == 2
    )


def test_launcher_and_variables_must_agree() -> None:
    cluster = 'TF_CONFIG={"cluster":{"worker":["a:1","b:1"]}}'
    agreeing = launch(["mpirun", "-H", "a,b", "-x", cluster, "train.py"])
    conflicting = launch([cluster, "mpirun", "-H", "a,b,c", "train.py"])

    assert problem_lines(agreeing) == []
    assert {setting.source for setting in agreeing.settings.values()} == {"mpirun"}
    assert problem_lines(conflicting) == [
        "hosts: mpirun sets 3 and environment TF_CONFIG sets 2; set both to the same value",
        "instances: mpirun sets 3 and environment TF_CONFIG sets 2; set both to the same value",
    ]


def test_problems_of_launchers_and_variables_are_reported_together() -> None:
    request = launch(["TF_CONFIG= poprun --num-replicas x --nope python3 train.py"])

    assert [line.split()[0] for line in problem_lines(request)] == [
        "unknown",
        "--num-replicas",
        "TF_CONFIG",
    ]


def test_a_quoted_command_uses_the_variables_before_it() -> None:
    command = split_command(["python3 train.py --data-dir $HERE/x"], {"HERE": "/a"})

    assert command.words == ("--data-dir", "/a/x")


README_WORDS = sorted({word for row in ROWS for word in row.line.split()})


@option_values.LIGHT
@given(st.lists(st.sampled_from(README_WORDS) | st.text(max_size=8), max_size=12), st.booleans())
@example(["poprun", "--mpi-local-args='", "--host", "a[0-9", "train.py"], False)
@example(["mpirun", "-x", "TF_CONFIG={}", "-H", "[", "python3", "-m", "."], False)
def test_every_input_gives_a_request_or_a_one_line_error(words: list[str], is_text: bool) -> None:
    try:
        command = split_command([" ".join(words)] if is_text else words, {})
        lines = problem_lines(read_launch(command, {}))
        identify_program(command, {})
    except ConfigError as error:
        lines = [str(error)]

    assert all(line.isprintable() for line in lines)


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def interpret_line(line: str, dialect: str | None = None, **extra: object) -> Interpretation:
    values = settings_from(COMMAND_LINE, extra)
    return interpret(split_command(shlex.split(line), {}), {}, dialect, values)


def problems(line: str) -> list[str]:
    return [str(problem) for problem in interpret_line(line).request.problems]


def mapped_words(interpretation: Interpretation) -> dict[str, str]:
    return {word.word: word.mapped_to for word in interpretation.mapped}


def dropped_words(interpretation: Interpretation) -> dict[str, str]:
    return {word.word: word.reason for word in interpretation.dropped}


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
    assert interpret_line(f"python3 {program}").verb == verb


UNAVAILABLE_PURPOSES = (
    "data verify",
    "data convert",
    "data rebalance",
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
        if purpose.value.startswith(UNAVAILABLE_PURPOSES)
    ],
)
def test_a_program_without_a_verb_is_refused_by_name(program: str, purpose: str) -> None:
    with pytest.raises(ConfigError) as error:
        interpret_line(f"python3 {program}")

    assert str(error.value) == f"{program} ({purpose}) is not available in this version"


@pytest.mark.parametrize(
    ("words", "dialect"),
    [
        ("--model resnet", "tensorflow"),  # a family name
        ("--model efficientnet --help", "tensorflow"),
        ("--model=efficientnet-b0", "pytorch"),  # a network name
        ("--model resnet50 --epochs 3", "pytorch"),
        ("--model resnet --epochs 3", "tensorflow"),
        ("--model squeezenet", "pytorch"),  # a tie: both dialects have it
        ("--config mk2_resnet8_test", "tensorflow"),
        ("--config resnet50", "pytorch"),
    ],
)
def test_the_name_of_a_network_selects_the_dialect(words: str, dialect: str) -> None:
    assert interpret_line(f"python3 train.py {words}").program.dialect == dialect


def test_an_explicit_dialect_takes_precedence() -> None:
    interpretation = interpret_line(
        "python3 train.py --config resnet50 --model resnet50", "tensorflow"
    )

    assert interpretation.program.dialect == "tensorflow"


def test_an_override_replaces_an_argument_which_is_reported() -> None:
    line = "python3 train.py --dataset imagenet --batch-size 8 --epochs 3"
    interpretation = interpret_line(line, micro_batch_size=16)

    assert interpretation.request.command_line["micro_batch_size"] == Setting(16, COMMAND_LINE)
    assert dropped_words(interpretation) == {
        "--batch-size 8": "overridden by an option before `--`"
    }
    assert (
        "--batch-size 8" not in mapped_words(interpretation)
        and mapped_words(interpretation)["--epochs 3"] == "--epoch 3"
    )


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
def test_an_override_replaces_the_option_it_excludes(word: str, name: str, value: object) -> None:
    interpretation = interpret_line(f"python3 train.py --dataset imagenet {word}", **{name: value})
    resolved = setting_values(resolve(interpretation.request).settings)

    assert resolved[name] == value
    assert word in dropped_words(interpretation)


def test_an_equal_override_keeps_the_argument() -> None:
    interpretation = interpret_line(
        "python3 train.py --dataset imagenet --batch-size 8", micro_batch_size=8
    )

    assert mapped_words(interpretation)["--batch-size 8"] == "--micro-batch-size 8"
    assert dropped_words(interpretation) == {}


def test_an_argument_with_several_effects_keeps_the_others() -> None:
    line = "python3 train.py --dataset cifar-10 --generated-data"
    mapped_to = [word.mapped_to for word in interpret_line(line, samples=64).mapped]

    assert "--data generated" in mapped_to and "--num-classes 10" in mapped_to
    assert not any(text.startswith("--samples") for text in mapped_to)


def test_a_launcher_sets_the_number_of_replicas() -> None:
    line = "python3 train.py --config mk2_resnet50_gn_16ipus"
    values = interpret_line(
        f"poprun --num-instances 2 --num-replicas 4 {line}"
    ).request.command_line

    assert values["replicas"] == Setting(4, "poprun")
    assert values["instances"] == Setting(2, "poprun")


def test_a_launcher_of_instances_multiplies_the_replicas() -> None:
    line = "mpirun -np 3 python3 train.py --dataset imagenet --replicas 2"

    assert interpret_line(line).request.command_line["replicas"].value == 6


@pytest.mark.parametrize(
    ("words", "stages"),
    [("--dataset imagenet", 1), ("--config mk2_resnet50_bn_16ipus", 4)],
)
def test_a_launcher_and_its_program_must_agree_on_devices(words: str, stages: int) -> None:
    assert problems(f"poprun --num-replicas 2 --ipus-per-replica 2 python3 train.py {words}") == [
        f"poprun devices per replica: 2, but the program sets stages: {stages}; "
        "set both to the same value"
    ]


def test_devices_that_match_the_stages_are_accepted() -> None:
    poprun = "poprun --num-replicas 4 --ipus-per-replica"

    assert problems(f"{poprun} 4 python3 train.py --config mk2_resnet50_bn_16ipus") == []
    assert problems(f"{poprun} 1 python3 train.py --config resnet50_mlperf_pod16") == []


def test_unused_settings_of_a_launcher_are_reported() -> None:
    line = "gc-profile -d here -- poprun -v --num-replicas 1 python3 train.py --model resnet18"

    assert dropped_words(interpret_line(line)) == {
        "gc-profile: profile dir": "profiles are written to the run folder",
        "poprun: verbosity": "`--progress` sets how much is printed",
    }


def test_validation_uses_the_batch_size_of_training_and_random_weights() -> None:
    named_config = interpret_line(
        "python3 validation.py --config mk2_resnet50_gn_16ipus"
    ).request.command_line
    from_arguments = interpret_line(
        "python3 validation.py --dataset imagenet --batch-size 5"
    ).request.command_line

    assert named_config["valid_batch_size"].value == 8
    assert named_config["random_weights"] == Setting(True, "no checkpoint was specified")
    assert from_arguments["valid_batch_size"].value == 5


def test_validation_of_a_run_uses_its_weights() -> None:
    interpretation = interpret_line(
        "python3 validation.py --batch-size 5 --valid-batch-size 7 --restore-path RUN"
    )

    assert interpretation.target == "RUN"
    assert "random_weights" not in interpretation.request.command_line
    assert interpretation.request.command_line["valid_batch_size"].value == 7


def test_training_drops_the_given_run_and_reports_it() -> None:
    interpretation = interpret_line("python3 train.py --dataset imagenet --restore-path RUN")

    assert dropped_words(interpretation) == {
        "RUN": "train.py starts a new run; restore.py resumes one"
    }


def test_an_inference_configuration_is_used_only_by_inference() -> None:
    inference, training = (
        interpret_line("run_benchmark.py --config resnet50"),
        interpret_line("train.py --config resnet50"),
    )
    inference_only = interpret_line("train.py --config resnet50-mk2 --model resnet50")

    assert (inference.config, training.config) == ("inference/resnet50", "resnet50")
    assert inference.request.named_config["micro_batch_size"].value == 90
    assert training.request.named_config["micro_batch_size"].value == 18
    assert inference_only.config == "inference/resnet50-mk2"


def test_arguments_override_a_configuration_which_overrides_the_dialect() -> None:
    interpretation = interpret_line("python3 train.py --config mk2_resnet50_gn_16ipus --epochs 50")
    settings = resolve(interpretation.request).settings

    assert settings["epoch"] == Setting(50.0, COMMAND_LINE)
    assert settings["replicas"].source.startswith("config mk2_resnet50_gn_16ipus, line ")
    assert settings["batchnorm_momentum"] == Setting(0.03, "dialect tensorflow")


def test_variables_are_passed_to_the_run_and_parsed() -> None:
    interpretation = interpret_line("DATA_DIR=/data CUSTOM=1 python3 train.py --dataset imagenet")

    assert interpretation.environment == {"DATA_DIR": "/data", "CUSTOM": "1"}
    assert resolve(interpretation.request).settings["data_dir"] == Setting(
        "/data", "environment DATA_DIR"
    )


def test_a_cache_path_of_the_runtime_sets_the_model_cache_path() -> None:
    line = "TF_POPLAR_FLAGS=--executable_cache_path=cache python3 train.py --dataset imagenet"

    assert interpret_line(line).request.command_line["model_cache_path"].value == "cache"


def test_all_problems_are_reported_together() -> None:
    line = "poprun --num-replicas 3 --num-instances 2 python3 train.py --config unknown --dataset x"

    assert problems(f"{line} --epochs long --modle resnet") == [
        "--num-replicas 3 is not a multiple of --num-instances 2; use --num-replicas 4",
        "unknown option --modle; did you mean --mode, --model, --model-size?",
        "--epochs expects a number, got 'long'",
        "--dataset must be one of imagenet, cifar-10, cifar-100, got 'x'",
        "--config 'unknown' is not a shipped configuration, and no configs.yml here defines it; "
        "`convoy configs` lists the shipped ones",
    ]


def ignored_words(line: str, dialect: str | None = None) -> set[str]:
    """The options of a command that are neither mapped nor dropped."""
    interpretation = interpret_line(line, dialect)
    reported = [*mapped_words(interpretation), *dropped_words(interpretation)]
    typed = {word for word in shlex.split(line) if word.startswith("--")} - {"--config"}
    return {word for word in typed if not any(text.split()[0] == word for text in reported)}


@settings(max_examples=100, deadline=None)
@given(mixtures(TENSORFLOW, "train.py", "mk2_resnet50_gn_16ipus", "mk2_resnet8_test"))
def test_every_argument_of_a_random_command_is_reported(line: str) -> None:
    assert ignored_words(line, "tensorflow") == set()
    assert ignored_words(line.replace("train.py", "validation.py"), "tensorflow") == set()


@settings(max_examples=60, deadline=None)
@given(mixtures(PYTORCH, "train.py", "resnet50") | mixtures(POPART, "resnet_main.py"))
def test_every_argument_of_the_other_programs_is_reported(line: str) -> None:
    assert ignored_words(line, "popart" if "resnet_main" in line else "pytorch") == set()


@pytest.mark.parametrize("launcher", ["mpirun -np 3", "poprun --num-instances 2 --num-replicas 6"])
def test_replicas_with_a_launcher_are_reported(launcher: str) -> None:
    interpretation = interpret_line(f"{launcher} python3 train.py --dataset imagenet --replicas 2")

    assert interpretation.request.command_line["replicas"].value == 6
    assert "--replicas 2" in (mapped_words(interpretation) | dropped_words(interpretation))


def test_replicas_that_are_multiplied_by_shards_are_reported() -> None:
    line = "python3 validation.py --dataset imagenet --replicas 4 --shards 2 --pipeline"

    assert mapped_words(interpret_line(line))["--replicas 4"] == "--replicas 8"


def test_help_is_printed_only_on_request() -> None:
    interpretation = interpret_line("python3 train.py --dataset imagenet --help")

    assert (
        interpretation.help.startswith("usage: train.py ") and "--model-size" in interpretation.help
    )
    assert "--micro-batch-size" in interpret_line("python3 train.py -h").help
    assert interpret_line("python3 train.py --dataset imagenet").help == ""
