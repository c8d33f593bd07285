"""Files of benchmarks: what they hold, and everything wrong with them by line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.bench.benchmarks_yml import (
    MOST_VARIANTS,
    Benchmark,
    Column,
    Definitions,
    Metric,
    combinations,
    read_benchmarks,
    read_sweeps,
    scalar_text,
    variants,
)
from convoy.config.option import WrongType
from convoy.config.yaml_reader import YamlEntry, parse_yaml
from convoy.errors import ConfigError

Write = Callable[[str], Path]

WHOLE = r"""---
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
faster: &faster {description: never seen}

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
def refused(write: Write) -> Callable[[str], list[str]]:
    def refuse(text: str) -> list[str]:
        with pytest.raises(ConfigError) as error:
            read_benchmarks(write(text))
        return str(error.value).splitlines()

    return refuse


def test_a_whole_entry_is_read_with_what_it_merges(write: Write) -> None:
    infer = read_benchmarks(write(WHOLE)).benchmarks["infer"]

    assert infer == Benchmark(
        "infer",
        infer.cmd,
        "Inference of a network on one device.",
        {"CACHE_DIR": "./cache", "LEVEL": "3", "OPTIONS": '{"a":"b", "c":"d"}'},
        ({"batchsize": ("1", "4")},),
        {
            "throughput": Metric("throughput", r"throughput: *(.*?) samples\/sec", "mean", skip=1),
            "loss": Metric("loss", r"loss: *(\d*\.\d*)", "final", skip=0),
        },
        {"late": "{batchsize} / {throughput}"},
        (Column("samples/sec", "throughput"), Column("Batch size", "batchsize")),
        ("location", "requirements_file", "pre_run_commands"),
        "benchmarks.yml, line 18",
    )


def test_a_command_folded_over_lines_becomes_words(write: Write) -> None:
    infer = read_benchmarks(write(WHOLE)).benchmarks["infer"]

    assert variants(infer, {"DATASETS_DIR": "/data"})[1].words == (
        "poprun",
        "-vv",
        "--mpi-local-args= -x PATH -x HOME",
        *("python3", "run.py", "--micro-batch-size", "4", "--data", "/data/x"),
    )


def test_an_entry_without_a_command_is_no_benchmark(write: Write) -> None:
    found = read_benchmarks(write(WHOLE + "\nword: &word text\nrows: [1, 2]\n"))

    assert list(found.benchmarks) == ["infer", "train"]
    assert found.merged == ("shared", "faster", "word", "rows")


def test_a_command_is_all_a_benchmark_needs(write: Write) -> None:
    text = "\na:\n  cmd: python3 train.py\n  data:\n  derived:\n  env:\n  output:\n"
    bare = Benchmark("a", "python3 train.py", origin="benchmarks.yml, line 2")

    assert read_benchmarks(write(text)) == Definitions({"a": bare})


def test_keys_of_an_entry_that_only_lends_them_are_free(write: Write) -> None:
    text = "words: &words {A: 1, B: two}\na: {cmd: x, env: *words}\n"

    assert read_benchmarks(write(text)).benchmarks["a"].env == {"A": "1", "B": "two"}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("  paramters: 1", "line 3: paramters is no key of a benchmark; did you mean parameters"),
        ("  qqq: 1", "line 3: qqq is no key of a benchmark; known are cmd, data, derived"),
        ("  data: 1", "line 3: data expects `name: value` lines"),
        ("  data:\n    x: 5", "line 4: x expects `name: value` lines"),
        ("  data:\n    x: {skip: 1}", "line 4: x has no regexp"),
        (
            "  data:\n    x: {regexp: a, skp: 1}",
            "line 4: skp is no key of a metric; did you mean s",
        ),
        ("  data:\n    x: {regexp: 5}", "line 4: regexp expects text, got 5"),
        ("  data:\n    x: {regexp: '('}", "line 4: regexp '(' is no regular expression: missing )"),
        ("  data:\n    x: {regexp: 'a{99999999999}'}", "is no regular expression"),
        ("  data:\n    x: {regexp: '(a)(b)'}", "line 4: regexp '(a)(b)' has 2 groups; one holds"),
        ("  data:\n    x: {regexp: a, skip: -1}", "line 4: skip must be at least 0, got -1"),
        ("  data:\n    x: {regexp: a, skip: 1.5}", "line 4: skip expects a whole number, got 1.5"),
        (
            "  data:\n    x: {regexp: a, reduction_type: maen}",
            "line 4: reduction_type cannot be 'maen'; did you mean mean",
        ),
        ("  derived:\n    y: {reduction_type: a}", "line 4: y has no expr"),
        ("  derived:\n    y: {expr: 1, e: 1}", "line 4: e is no key of a derived metric"),
        ("  derived:\n    y: {expr: '1 +'}", "line 4: expr '1 +' is no arithmetic"),
        (
            "  data: {rate: {regexp: a}}\n  derived:\n    y: {expr: '{rat}'}",
            "line 5: expr uses {rat}, which is not known; did you mean rate?",
        ),
        ("  env: [A]", "line 3: env expects `name: value` lines"),
        ("  env:\n    A: [1]", "line 4: A expects one value, got several"),
        ("  env:\n    A:", "line 4: A needs a value"),
        ("  output: throughput", "line 3: output expects pairs, [title of the column, metric]"),
        ("  output:\n    - [a]", "line 4: output expects pairs"),
        ("  output:\n    - [a, [b]]", "line 4: output expects pairs"),
        ("  parameters: 5", "line 3: parameters expect `name: values` lines"),
        ("  description: [a]", "line 3: description expects text, got several values"),
    ],
)
def test_a_fault_is_told_with_its_line_and_key(
    refused: Callable[[str], list[str]], lines: str, told: str
) -> None:
    first, *_ = refused(f"a:\n  cmd: python3 train.py\n{lines}\n")

    assert told in first and first.startswith("benchmarks.yml, ")


@pytest.mark.parametrize(
    ("cmd", "told"),
    [
        ("run {batchsiz}", "asks for {batchsiz}, which is no parameter; did you mean batchsize?"),
        ("run 'a", "cannot be split into words: No closing quotation"),
        ("", "needs a value"),
        ("[a, b]", "expects text, got several values"),
    ],
)
def test_a_command_that_cannot_be_made_is_refused(
    refused: Callable[[str], list[str]], cmd: str, told: str
) -> None:
    (only,) = refused(f'a:\n  parameters: {{batchsize: "1,2"}}\n  cmd: {cmd or chr(34) * 2}\n')

    assert only == f"benchmarks.yml, line 3: cmd {told}"


def test_a_command_may_not_ask_for_parameters_where_there_are_none(
    refused: Callable[[str], list[str]],
) -> None:
    (only,) = refused("a:\n  cmd: run {size}\n")

    assert "asks for {size}, which is no parameter; there is no parameter at all" in only


def test_every_sweep_must_give_what_the_command_asks_for(
    refused: Callable[[str], list[str]],
) -> None:
    (only,) = refused("a:\n  parameters: [{x: 1, y: 2}, {x: 3}]\n  cmd: run {x} {y}\n")

    assert "asks for {y}, which is no parameter" in only


def test_all_faults_of_a_file_come_together_and_each_once(
    refused: Callable[[str], list[str]],
) -> None:
    text = "b: &b\n  data: {x: {skp: 1, regexp: a}}\n"
    lines = refused(f"{text}c:\n  <<: *b\n  cmd: {{}}\nd:\n  <<: *b\n  cmd: x\n  evn: 1\n")

    assert [line.split(":")[0] for line in lines] == [
        "benchmarks.yml, line 2",
        "benchmarks.yml, line 5",
        "benchmarks.yml, line 9",
    ]


def test_a_file_without_a_benchmark_is_refused(refused: Callable[[str], list[str]]) -> None:
    assert refused("a: {cdm: x}\n") == ["benchmarks.yml holds no benchmark: no entry has a cmd"]
    assert refused("") == ["benchmarks.yml holds no benchmark: no entry has a cmd"]


def test_an_entry_written_twice_is_refused_with_both_lines(
    refused: Callable[[str], list[str]],
) -> None:
    assert refused("a: {cmd: x}\nb: {cmd: x}\na: {cmd: y}\n") == [
        "benchmarks.yml, line 3: the key 'a' is already set on line 1"
    ]


def test_a_derived_metric_may_use_those_before_it(write: Write) -> None:
    text = "a:\n  cmd: x\n  derived:\n    b: {expr: '1 + 1'}\n    c: {expr: '{b} * 2'}\n"

    assert read_benchmarks(write(text)).benchmarks["a"].derived == {"b": "1 + 1", "c": "{b} * 2"}


def entry(text: str) -> YamlEntry:
    return parse_yaml(f"parameters: {text}", "x")["parameters"]


@pytest.mark.parametrize(
    "text",
    [
        "{batchsize: '1,4,16', kind: SYNC}",
        "{batchsize: '1, 4 ,16', kind: [SYNC]}",
        "{batchsize: [1, 4, 16], kind: SYNC}",
        "\n  batchsize: 1,4,16\n  kind: SYNC",
        "[{batchsize: [1, 4, 16], kind: SYNC}]",
    ],
)
def test_values_come_as_a_comma_list_or_as_a_list(text: str) -> None:
    assert read_sweeps(entry(text)) == ({"batchsize": ("1", "4", "16"), "kind": ("SYNC",)},)


def test_a_list_of_mappings_is_one_sweep_after_the_other() -> None:
    sweeps = read_sweeps(entry("[{a: '1,2'}, {a: 3, b: 4}]"))

    assert sweeps == ({"a": ("1", "2")}, {"a": ("3",), "b": ("4",)})


def test_a_table_gives_one_variant_a_row() -> None:
    sweeps = read_sweeps(entry("\n- [phase, file]\n- [128, 'a,b']\n- [384, c]"))

    assert combinations(sweeps) == [
        {"phase": "128", "file": "a,b"},
        {"phase": "384", "file": "c"},
    ]


@pytest.mark.parametrize("text", ["", "~", "{}"])
def test_no_parameters_are_one_variant(text: str) -> None:
    assert combinations(read_sweeps(entry(text))) == [{}]


@pytest.mark.parametrize(
    ("value", "text"), [("4", "4"), ("0.5", "0.5"), ("1e-3", "0.001"), ("true", "true"), ("a", "a")]
)
def test_a_value_is_spelled_as_on_a_command_line(value: str, text: str) -> None:
    assert scalar_text(entry(value)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "expect `name: values` lines, or rows"),
        ("[]", "expect `name: values` lines, or rows"),
        ("[a, b]", "expect `name: values` lines, or rows"),
        ("[{a: 1}, [a]]", "expect `name: values` lines, or rows"),
        ("{a: '1,,2'}", "give 'a' an empty value"),
        ("{a: []}", "give 'a' an empty value"),
        ("{a: ''}", "give 'a' an empty value"),
        ("{a: }", "needs a value"),
        ("{a: [1, ~]}", "needs a value"),
        ("{a: {b: 1}}", "expects one value, got several"),
        ("{a: [[1]]}", "expects one value, got several"),
        ("{a: '1,2,1'}", "give the same variant twice: a 1"),
        ("[{a: 1, b: 2}, {a: 1, b: 2}]", "give the same variant twice: a 1, b 2"),
        ("[[a, b]]", "have a row of names and no row of values"),
        ("[[a, b], [1, 2], [1]]", "have a row of 1 values for 2 names"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(text: str, reason: str) -> None:
    with pytest.raises(WrongType) as error:
        read_sweeps(entry(text))

    assert reason in str(error.value)


def test_more_variants_than_anyone_means_are_refused_before_they_are_made() -> None:
    hundred = ",".join(map(str, range(100)))
    many = ", ".join(f"p{number}: '{hundred}'" for number in range(9))
    with pytest.raises(WrongType, match="make 1,000,000,000,000,000,000 variants; at most 1,000"):
        read_sweeps(entry(f"{{{many}}}"))

    just = ",".join(map(str, range(MOST_VARIANTS)))
    assert len(combinations(read_sweeps(entry(f"{{a: '{just}'}}")))) == MOST_VARIANTS
