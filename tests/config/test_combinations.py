"""Any combination of options gives a plan or error lines that name what is wrong."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import option_values
from support.random_command_lines import Phrase, dialect_arguments, lines, values_of
from support.run_convoy import CommandResult, convoy

from convoy.config.flags import canonical
from convoy.config.schema import option_table
from convoy.dialects import DIALECTS

SPELLINGS = {spelling for dialect in DIALECTS.values() for spelling in dialect().by_spelling}
SPELLINGS |= {"--config", "--config-path", "--dialect", "--help", "--json"}


def hypothesis_settings(examples: int) -> settings:
    """Settings without deadlines, for busy machines."""
    suppressed = [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ]
    return settings(max_examples=examples, deadline=None, suppress_health_check=suppressed)


def refuse_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def read_json(text: str) -> Any:
    return json.loads(text, parse_constant=refuse_constants)


def names_an_option(line: str, words: list[str]) -> bool:
    """Whether a line names an existing option or a typed word."""
    typed = [part for word in words for part in (word, *word.split("="))]
    displayed = [repr(part)[1:-1][:60] for part in typed if part] + ["''"]
    flags = set(re.findall(r"--?[A-Za-z][\w-]*", line)) & SPELLINGS
    return bool(flags) or any(word in line for word in displayed)


def check_refusal(result: CommandResult, words: list[str]) -> None:
    lines = result.err.splitlines()

    assert result.out == "" and lines
    for line in lines:
        assert line.startswith("convoy: ") and line.isprintable() and len(line) < 1000, line
        assert names_an_option(line.removeprefix("convoy: "), words), line
    assert len(set(lines)) == len(lines)


def check(words: list[str], as_json: bool) -> CommandResult:
    """Run a command and check that it gives a plan or an error."""
    result = convoy(*words)
    if result.code == 0:
        assert result.err == "" and result.out
        assert not as_json or read_json(result.out)
    else:
        assert result.code == 2, result
        check_refusal(result, words)
    return result


def words_of(line: list[Phrase]) -> list[str]:
    return [word for phrase in line for word in phrase.words]


def check_meaning(line: list[Phrase], result: CommandResult) -> None:
    """Wrong values are named, right ones are in the plan."""
    last = {phrase.option or phrase.words: phrase for phrase in line}
    wrong = {phrase.wrong for phrase in last.values() if phrase.wrong}
    assert result.code == 2 or not wrong
    assert [flag for flag in wrong if flag not in result.err] == []
    if result.code == 0 and "--json" in words_of(line) and "list" not in words_of(line):
        options = read_json(result.out)["options"]
        values = {
            phrase.option: json.loads(json.dumps(phrase.value)) for phrase in line if phrase.option
        }
        assert {name: options[name]["value"] for name in values} == values


def test_a_thousand_command_lines_give_a_plan_or_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(1000)
    @given(lines())
    def every_line(line: list[Phrase]) -> None:
        words = words_of(line)
        result = check(["plan", *words], as_json="--json" in words)
        codes[result.code] += 1
        if not any(phrase.unchecked for phrase in line):
            check_meaning(line, result)

    every_line()

    assert min(codes[0], codes[2]) > 200, codes
    assert list(tmp_path.iterdir()) == []


PROGRAMS = {
    "tensorflow": ("train.py", "train.py", "train.py", "restore.py", "validation.py"),
    "pytorch": ("train.py", "train.py", "train.py", "weight_avg.py", "validate.py"),
}


@pytest.mark.parametrize("dialect", PROGRAMS)
def test_commands_of_other_applications_give_a_plan_or_clear_errors(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(300)
    @given(st.sampled_from(PROGRAMS[dialect]), dialect_arguments(DIALECTS[dialect]()))
    def every_command(program: str, words: list[str]) -> None:
        command = ["--dialect", dialect, "--", "python3", program, *words]
        result = check(["run", "--dry-run", *command], as_json=True)
        codes[result.code] += 1
        if result.code == 0 and read_json(result.out)["command"].startswith("convoy train "):
            check_command(read_json(result.out))

    every_command()

    assert min(codes[0], codes[2]) > 30, codes
    assert list(tmp_path.iterdir()) == []


def check_command(meaning: dict[str, Any]) -> None:
    """The printed canonical command means the same."""
    words = shlex.split(meaning["command"])[2:]
    result = convoy("plan", "--json", *words)
    assert result.code == 0, result
    values = [
        {name: option["value"] for name, option in plan["options"].items()}
        for plan in (meaning["plan"], read_json(result.out))
    ]

    assert values[0] == values[1]


AWKWARD = st.sampled_from(option_values.AWKWARD)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | AWKWARD,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(AWKWARD, some, max_size=2),
    max_leaves=4,
)
NAMES = [*(flag.name for flag in canonical().flags), "<<", "lrr", "", "_", "é", "a b"]
ROW = st.sampled_from(list(option_table().values()))
FITTING = ROW.flatmap(lambda row: st.tuples(st.just(row.name), values_of(row)))
ANYTHING = st.tuples(st.sampled_from(NAMES), VALUES)
RAW = st.text(st.sampled_from("lr: 0.1\n-[]{}&*!|>'\"%@`#,?~\t\\é\x00"), max_size=30)


def as_yaml(entries: list[tuple[str, Any]], name: str = "") -> str:
    """One configuration, optionally named. JSON is YAML; infinity and NaN become words."""
    indent = "  " if name else ""
    rows = [f"{indent}{json.dumps(key)}: {json.dumps(value)}\n" for key, value in entries]
    return "".join([f"{name}:\n" if name else "", *rows])


RIGHT = st.lists(FITTING, max_size=4).map(as_yaml)
NAMED = st.builds(as_yaml, st.lists(FITTING, max_size=4), st.just("mine"))
MIXED = st.lists(FITTING | ANYTHING, max_size=6).map(as_yaml)
BROKEN = st.builds(lambda text, raw: text + raw, RIGHT, RAW)
WORDS = ([], [], [], ["--config", "mine"], *(["--dialect", dialect] for dialect in DIALECTS))


def test_files_give_a_plan_or_clear_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(300)
    @given(st.one_of(RIGHT, NAMED, MIXED, BROKEN), st.sampled_from(WORDS))
    def every_file(text: str, words: list[str]) -> None:
        Path("mine.yaml").write_text(text, encoding="utf-8")
        result = check(["plan", "--json", "--config-path", "mine.yaml", *words], as_json=True)
        codes[result.code] += 1

    every_file()

    assert min(codes[0], codes[2]) > 30, codes
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
