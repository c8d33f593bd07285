"""Any combination of options gives a plan or errors that name an option or an argument."""

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
    """Settings without deadlines, which a busy machine would exceed."""
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
    quoted = [repr(part)[1:-1][:60] for part in typed if part] + ["''"]
    flags = set(re.findall(r"--?[A-Za-z][\w-]*", line)) & SPELLINGS
    return bool(flags) or any(word in line for word in quoted)


def check_refusal(result: CommandResult, words: list[str]) -> None:
    lines = result.err.splitlines()

    assert result.out == "" and lines
    for line in lines:
        assert line.startswith("convoy: ") and line.isprintable() and len(line) < 1000, line
        assert names_an_option(line.removeprefix("convoy: "), words), line
    assert len(set(lines)) == len(lines)


def run_and_check(words: list[str], as_json: bool) -> CommandResult:
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


def check_values(line: list[Phrase], result: CommandResult) -> None:
    """Invalid values are reported, valid ones are in the plan."""
    last_phrases = {phrase.option or phrase.words: phrase for phrase in line}
    invalid_flags = {phrase.wrong for phrase in last_phrases.values() if phrase.wrong}
    assert result.code == 2 or not invalid_flags
    assert [flag for flag in invalid_flags if flag not in result.err] == []
    if result.code == 0 and "--json" in words_of(line) and "list" not in words_of(line):
        options = read_json(result.out)["options"]
        values = {
            phrase.option: json.loads(json.dumps(phrase.value)) for phrase in line if phrase.option
        }
        assert {name: options[name]["value"] for name in values} == values


def test_random_command_lines_give_a_plan_or_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(1000)
    @given(lines())
    def check_line(line: list[Phrase]) -> None:
        words = words_of(line)
        result = run_and_check(["plan", *words], as_json="--json" in words)
        codes[result.code] += 1
        if not any(phrase.unchecked for phrase in line):
            check_values(line, result)

    check_line()

    assert min(codes[0], codes[2]) > 200, codes
    assert list(tmp_path.iterdir()) == []


PROGRAMS = {
    "tensorflow": ("train.py", "train.py", "train.py", "restore.py", "validation.py"),
    "pytorch": ("train.py", "train.py", "train.py", "weight_avg.py", "validate.py"),
}


@pytest.mark.parametrize("dialect", PROGRAMS)
def test_random_commands_of_other_applications_give_a_plan_or_clear_errors(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(300)
    @given(st.sampled_from(PROGRAMS[dialect]), dialect_arguments(DIALECTS[dialect]()))
    def check_command(program: str, words: list[str]) -> None:
        command = ["--dialect", dialect, "--", "python3", program, *words]
        result = run_and_check(["run", "--dry-run", *command], as_json=True)
        codes[result.code] += 1
        if result.code == 0 and read_json(result.out)["command"].startswith("convoy train "):
            check_canonical_command(read_json(result.out))

    check_command()

    assert min(codes[0], codes[2]) > 30, codes
    assert list(tmp_path.iterdir()) == []


def check_canonical_command(description: dict[str, Any]) -> None:
    """The canonical command sets every option to the same value."""
    words = shlex.split(description["command"])[2:]
    result = convoy("plan", "--json", *words)
    assert result.code == 0, result
    values = [
        {name: option["value"] for name, option in plan["options"].items()}
        for plan in (description["plan"], read_json(result.out))
    ]

    assert values[0] == values[1]


AWKWARD = st.sampled_from(option_values.AWKWARD)
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | AWKWARD,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(AWKWARD, values, max_size=2),
    max_leaves=4,
)
NAMES = [*(flag.name for flag in canonical().flags), "<<", "lrr", "", "_", "é", "a b"]
OPTION = st.sampled_from(list(option_table().values()))
VALID_ENTRY = OPTION.flatmap(lambda option: st.tuples(st.just(option.name), values_of(option)))
ANY_ENTRY = st.tuples(st.sampled_from(NAMES), ANY_VALUE)
RANDOM_TEXT = st.text(st.sampled_from("lr: 0.1\n-[]{}&*!|>'\"%@`#,?~\t\\é\x00"), max_size=30)


def as_yaml(entries: list[tuple[str, Any]], name: str = "") -> str:
    """A YAML file with one configuration, optionally named; JSON values are valid YAML."""
    indent = "  " if name else ""
    rows = [f"{indent}{json.dumps(key)}: {json.dumps(value)}\n" for key, value in entries]
    return "".join([f"{name}:\n" if name else "", *rows])


VALID_FILE = st.lists(VALID_ENTRY, max_size=4).map(as_yaml)
NAMED_CONFIG_FILE = st.builds(as_yaml, st.lists(VALID_ENTRY, max_size=4), st.just("custom"))
MIXED_FILE = st.lists(VALID_ENTRY | ANY_ENTRY, max_size=6).map(as_yaml)
BROKEN_FILE = st.builds(lambda text, raw: text + raw, VALID_FILE, RANDOM_TEXT)
CONFIG_ARGS = (
    [],
    [],
    [],
    ["--config", "custom"],
    *(["--dialect", dialect] for dialect in DIALECTS),
)


def test_random_files_give_a_plan_or_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: Counter[int] = Counter()

    @hypothesis_settings(300)
    @given(
        st.one_of(VALID_FILE, NAMED_CONFIG_FILE, MIXED_FILE, BROKEN_FILE),
        st.sampled_from(CONFIG_ARGS),
    )
    def check_file(text: str, words: list[str]) -> None:
        Path("custom.yaml").write_text(text, encoding="utf-8")
        result = run_and_check(
            ["plan", "--json", "--config-path", "custom.yaml", *words], as_json=True
        )
        codes[result.code] += 1

    check_file()

    assert min(codes[0], codes[2]) > 30, codes
    assert [path.name for path in tmp_path.iterdir()] == ["custom.yaml"]
