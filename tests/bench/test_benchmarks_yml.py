"""Read `benchmarks.yml` files, and report every problem with its line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.bench.benchmarks_yml import (
    MAX_VARIANTS,
    Benchmark,
    Metric,
    expand_variants,
    parameter_combinations,
    parse_parameters,
    read_benchmarks,
    scalar_text,
)
from convoy.config.option import OptionTypeError
from convoy.config.schema import DroppedWord
from convoy.config.yaml_reader import YamlEntry, parse_yaml
from convoy.errors import ConfigError

Write = Callable[[str], Path]

COMPLETE_FILE = r"""---
shared: &shared
  location: apps/cnns
  requirements_file: requirements.txt
  pre_run_commands: [make install, make more]
  data:
    throughput:
      regexp: 'throughput: *(.*?) samples\/sec'
      skip: 1
    loss:
      reduction_type: "final"
      regexp: 'loss: *(\d*\.\d*)'
  output:
    - [samples/sec, "throughput"]
    - [Batch size, 'batchsize']
faster: &faster {description: overridden}

infer:
  <<: [*shared, *faster]
  description: |
    Inference of a network
    on one device.
  parameters:
    batchsize: 1,4
  env:
    CACHE_DIR: "./cache"
    LEVEL: 3
    OPTIONS: '{"a":"b",
      "c":"d"}'
  cmd: >-
    poprun
      -vv
      --mpi-local-args="
        -x PATH
        -x HOME"
    python3 run.py
      --micro-batch-size {batchsize}
      --data $DATASETS_DIR/x
  derived:
    late:
      expr: '{batchsize} / {throughput}'
      reduction_type: p99

train:
  cmd: python3
    train.py
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("benchmarks.yml").write_text(text)
        return Path("benchmarks.yml")

    return write


@pytest.fixture
def error_lines(write: Write) -> Callable[[str], list[str]]:
    def refuse(text: str) -> list[str]:
        with pytest.raises(ConfigError) as error:
            read_benchmarks(write(text))
        return str(error.value).splitlines()

    return refuse


def test_an_entry_is_read_with_its_merged_keys(write: Write) -> None:
    infer = read_benchmarks(write(COMPLETE_FILE))[0]["infer"]
    reason = "it sets up a machine for the reference applications; no setup is needed here"

    assert infer == Benchmark(
        "infer",
        infer.cmd,
        "Inference of a network on one device.",
        {"CACHE_DIR": "./cache", "LEVEL": "3", "OPTIONS": '{"a":"b", "c":"d"}'},
        {"batchsize": ("1", "4")},
        {
            "throughput": Metric("throughput", r"throughput: *(.*?) samples\/sec", "mean", skip=1),
            "loss": Metric("loss", r"loss: *(\d*\.\d*)", "final", skip=0),
        },
        (("samples/sec", "throughput"), ("Batch size", "batchsize")),
        (
            DroppedWord("location", reason),
            DroppedWord("requirements_file", reason),
            DroppedWord("pre_run_commands", reason),
            DroppedWord("derived", "derived metrics are not supported"),
        ),
        "benchmarks.yml, line 18",
    )


def test_a_command_folded_over_lines_is_split(write: Write) -> None:
    infer = read_benchmarks(write(COMPLETE_FILE))[0]["infer"]

    assert expand_variants(infer, {"DATASETS_DIR": "/data"})[1].words == (
        "poprun",
        "-vv",
        "--mpi-local-args= -x PATH -x HOME",
        *("python3", "run.py", "--micro-batch-size", "4", "--data", "/data/x"),
    )


def test_an_entry_without_a_command_is_not_a_benchmark(write: Write) -> None:
    benchmarks, merged = read_benchmarks(
        write(COMPLETE_FILE + "\nword: &word text\nrows: [1, 2]\n")
    )

    assert list(benchmarks) == ["infer", "train"]
    assert merged == ["shared", "faster", "word", "rows"]


def test_a_benchmark_requires_only_a_command(write: Write) -> None:
    text = "\na:\n  cmd: python3 train.py\n  data:\n  parameters:\n  env:\n  output:\n"
    expected = Benchmark("a", "python3 train.py", origin="benchmarks.yml, line 2")

    assert read_benchmarks(write(text)) == ({"a": expected}, [])


def test_an_entry_that_others_merge_can_have_any_keys(write: Write) -> None:
    text = "words: &words {A: 1, B: two}\na: {cmd: x, env: *words}\n"

    assert read_benchmarks(write(text))[0]["a"].env == {"A": "1", "B": "two"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "  paramters: 1",
            "line 3: paramters is not a key of a benchmark; did you mean parameters",
        ),
        ("  qqq: 1", "line 3: qqq is not a key of a benchmark; choose from cmd, data, derived"),
        ("  data: 1", "line 3: data expects `name: value` lines"),
        ("  data:\n    x: 5", "line 4: x expects `name: value` lines"),
        ("  data:\n    x: {skip: 1}", "line 4: x has no regexp"),
        (
            "  data:\n    x: {regexp: a, skp: 1}",
            "line 4: skp is not a key of a metric; did you mean s",
        ),
        ("  data:\n    x: {regexp: 5}", "line 4: regexp expects a string, got 5"),
        (
            "  data:\n    x: {regexp: '('}",
            "line 4: regexp '(' is not a regular expression: missing )",
        ),
        ("  data:\n    x: {regexp: 'a{99999999999}'}", "is not a regular expression"),
        ("  data:\n    x: {regexp: '(a)(b)'}", "line 4: regexp '(a)(b)' has 2 groups; use one"),
        ("  data:\n    x: {regexp: a, skip: -1}", "line 4: skip must be at least 0, got -1"),
        ("  data:\n    x: {regexp: a, skip: 1.5}", "line 4: skip expects an integer, got 1.5"),
        (
            "  data:\n    x: {regexp: a, reduction_type: maen}",
            "line 4: reduction_type cannot be 'maen'; did you mean mean",
        ),
        ("  env: [A]", "line 3: env expects `name: value` lines"),
        ("  env:\n    A: [1]", "line 4: A expects one value, got several"),
        ("  env:\n    A:", "line 4: A needs a value"),
        ("  output: throughput", "line 3: output expects pairs [column title, metric]"),
        ("  output:\n    - [a]", "line 4: output expects pairs"),
        ("  output:\n    - [a, [b]]", "line 4: output expects pairs"),
        ("  parameters: 5", "line 3: parameters expects `name: value` lines"),
        ("  parameters: [a, b]", "line 3: parameters expects `name: value` lines"),
        ("  parameters: {a: '1,2,1'}", "line 3: parameters give the same variant twice: a 1"),
        ("  description: [a]", "line 3: description expects a string, got several values"),
    ],
)
def test_a_problem_is_reported_with_its_line_and_key(
    error_lines: Callable[[str], list[str]], lines: str, message: str
) -> None:
    first, *_ = error_lines(f"a:\n  cmd: python3 train.py\n{lines}\n")

    assert message in first and first.startswith("benchmarks.yml, ")


@pytest.mark.parametrize(
    ("cmd", "message"),
    [
        ("run {batchsiz}", "uses {batchsiz}, which is not a parameter; did you mean batchsize?"),
        ("run 'a", "cannot be split into arguments: No closing quotation"),
        ("", "needs a value"),
        ("[a, b]", "expects a string, got several values"),
    ],
)
def test_an_invalid_command_is_refused(
    error_lines: Callable[[str], list[str]], cmd: str, message: str
) -> None:
    (line,) = error_lines(f'a:\n  parameters: {{batchsize: "1,2"}}\n  cmd: {cmd or chr(34) * 2}\n')

    assert line == f"benchmarks.yml, line 3: cmd {message}"


def test_a_command_cannot_use_parameters_that_do_not_exist(
    error_lines: Callable[[str], list[str]],
) -> None:
    (line,) = error_lines("a:\n  cmd: run {size}\n")

    assert "uses {size}, which is not a parameter; there are no parameters" in line


def test_all_problems_of_a_file_are_reported_once_and_together(
    error_lines: Callable[[str], list[str]],
) -> None:
    text = "b: &b\n  data: {x: {skp: 1, regexp: a}}\n"
    lines = error_lines(f"{text}c:\n  <<: *b\n  cmd: {{}}\nd:\n  <<: *b\n  cmd: x\n  evn: 1\n")

    assert [line.split(":")[0] for line in lines] == [
        "benchmarks.yml, line 2",
        "benchmarks.yml, line 5",
        "benchmarks.yml, line 9",
    ]


def test_a_file_without_a_benchmark_is_refused(error_lines: Callable[[str], list[str]]) -> None:
    assert error_lines("a: {cdm: x}\n") == [
        "benchmarks.yml contains no benchmark: no entry has a cmd"
    ]
    assert error_lines("") == ["benchmarks.yml contains no benchmark: no entry has a cmd"]


def test_a_duplicate_entry_is_refused_with_both_lines(
    error_lines: Callable[[str], list[str]],
) -> None:
    assert error_lines("a: {cmd: x}\nb: {cmd: x}\na: {cmd: y}\n") == [
        "benchmarks.yml, line 3: the key 'a' is already set on line 1"
    ]


def entry(text: str) -> YamlEntry:
    return parse_yaml(f"parameters: {text}".encode(), "x")["parameters"]


def entries(text: str) -> dict[str, YamlEntry]:
    value = entry(text).value
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "text",
    [
        "{batchsize: '1,4,16', kind: SYNC}",
        "{batchsize: '1, 4 ,16', kind: [SYNC]}",
        "{batchsize: [1, 4, 16], kind: SYNC}",
        "\n  batchsize: 1,4,16\n  kind: SYNC",
    ],
)
def test_values_are_comma_separated_or_a_yaml_list(text: str) -> None:
    assert parse_parameters(entries(text)) == {"batchsize": ("1", "4", "16"), "kind": ("SYNC",)}


def test_a_benchmark_without_parameters_has_one_variant() -> None:
    assert parameter_combinations(parse_parameters({})) == [{}]


@pytest.mark.parametrize(
    ("value", "text"), [("4", "4"), ("0.5", "0.5"), ("1e-3", "0.001"), ("true", "true"), ("a", "a")]
)
def test_a_value_is_spelled_as_on_a_command_line(value: str, text: str) -> None:
    assert scalar_text(entry(value)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a: '1,,2'}", "give 'a' an empty value"),
        ("{a: []}", "give 'a' an empty value"),
        ("{a: ''}", "give 'a' an empty value"),
        ("{a: }", "needs a value"),
        ("{a: [1, ~]}", "needs a value"),
        ("{a: {b: 1}}", "expects one value, got several"),
        ("{a: [[1]]}", "expects one value, got several"),
        ("{a: '1,2,1'}", "give the same variant twice: a 1"),
        ("{a: [1, 1], b: 2}", "give the same variant twice: a 1, b 2"),
    ],
)
def test_invalid_parameters_are_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionTypeError) as error:
        parse_parameters(entries(text))

    assert reason in str(error.value)


def test_too_many_variants_are_refused_before_they_are_created() -> None:
    hundred = ",".join(map(str, range(100)))
    many = ", ".join(f"p{number}: '{hundred}'" for number in range(9))
    with pytest.raises(
        OptionTypeError, match="give 1,000,000,000,000,000,000 variants; the maximum is 1,000"
    ):
        parse_parameters(entries(f"{{{many}}}"))

    largest = ",".join(map(str, range(MAX_VARIANTS)))
    assert (
        len(parameter_combinations(parse_parameters(entries(f"{{a: '{largest}'}}"))))
        == MAX_VARIANTS
    )
