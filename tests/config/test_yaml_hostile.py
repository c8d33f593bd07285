"""Invalid, random and malicious files give a dict or an error of one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config import yaml_reader
from convoy.config.yaml_reader import parse_yaml, read_yaml
from convoy.errors import ConfigError
from convoy.text import control_character

no_deadline = settings(deadline=None)

YAML_FRAGMENTS = (
    *("a", "b", "<<", ": ", ":", "- ", "? ", "\n", "\n  ", "\n    ", "\r\n", "\t", " ", "#"),
    *(
        "[",
        "]",
        "{",
        "}",
        ",",
        "&a ",
        "*a",
        "&b ",
        "*b ",
        "!!str ",
        "!!int ",
        "!!map ",
        "!x ",
        "! ",
    ),
    *(
        '"',
        "'",
        "|",
        ">",
        "|2-",
        ">+",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "%TAG ! x\n",
        "%",
        "@",
        "`",
    ),
    *(
        "010",
        "1e3",
        ".nan",
        "~",
        "true",
        "1" * 20,
        "\\x",
        '"\\UFFFFFFFF"',
        '"\\ud800"',
        "%ff",
        "!<",
    ),
    *("é", "\u2028", "\x85", "\ufeff", "\0", "\r", "\ud800", "🚚"),
)

# PyYAML writes such text without quotes; convoy reads it as a number.
BARE_NUMBER = re.compile("[-+.0-9eE]+")

texts = st.text().filter(lambda text: not control_character(text) and not BARE_NUMBER.match(text))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18) + 1, 10**18 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["no", "010", "<<", "~", "", "0x1F", "1_0", "1:30", "2001-01-01", ".nan"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def parse_error(source: str | bytes) -> str:
    """The error message, which is one printable line; empty if the text is valid."""
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    try:
        assert isinstance(parse_yaml(data, "run.yaml"), dict)
    except ConfigError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 500
        return str(error)
    return ""


@no_deadline
@given(st.dictionaries(texts, values, max_size=5), st.sampled_from([None, True, False]))
def test_pyyaml_dumps_are_read_back_equal(config: dict[str, object], flow: bool | None) -> None:
    dumped = yaml.safe_dump(config, default_flow_style=flow, allow_unicode=flow, sort_keys=False)
    values = {key: entry.to_python() for key, entry in parse_yaml(dumped.encode(), "x").items()}

    assert repr(values) == repr(config)  # unlike ==, repr distinguishes 1, 1.0 and True


@no_deadline
@given(st.text() | st.binary())
def test_random_text_and_bytes_give_a_dict_or_one_error_line(source: str | bytes) -> None:
    parse_error(source)


@settings(no_deadline, max_examples=200)
@given(st.lists(st.sampled_from(YAML_FRAGMENTS), max_size=30).map("".join))
def test_random_fragments_of_yaml_give_a_dict_or_one_error_line(text: str) -> None:
    parse_error(text)
    parse_error("a: " + text)
    parse_error(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: c: d", 2),
        ("a: 1\nb: 'open", 2),
        ('a: 1\nb: "\\q"', 2),
        ("a: 1\n b: 2", 2),
        ("- a\nb: 1", 2),
        ("a: 1\nb: !e!x 1", 2),
        ("a: 1\nb: @x", 2),
        ("%YAML 3.0\n---\na: 1", 1),
    ],
)
def test_invalid_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    assert parse_error(text).startswith(f"run.yaml, line {line}: not YAML: ")


def test_an_unclosed_bracket_is_reported_with_its_line() -> None:
    assert "while parsing a flow sequence on line 2" in parse_error("a: 1\nb: [1,\n\n\nc: 2\n")


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', f"%YAML 1.{'9' * 5000}\n---\na: 1"])
def test_input_that_crashes_a_parser_is_refused(text: str) -> None:
    assert "not YAML" in parse_error(text)


@pytest.mark.parametrize("text", ["a: 1\n---\nb: 2", "a: 1\n---\n", "---\n---\n", "a: 1\n--- x"])
def test_a_second_document_is_refused_with_its_line(text: str) -> None:
    assert re.fullmatch(
        r"run.yaml, line [23]: not YAML: expected a single document .*but found another document",
        parse_error(text),
    )


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1\n" + b"#" * 2**18)

    with pytest.raises(ConfigError, match="is too large for a configuration"):
        read_yaml(path)


READ_WITH_LIMIT = """
import resource, sys
from pathlib import Path
from convoy.config.yaml_reader import read_yaml
from convoy.errors import ConfigError

resource.setrlimit(resource.RLIMIT_AS, (256 * 2**20, 256 * 2**20))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.stem, len(read_yaml(path)))
    except ConfigError as error:
        print(path.stem, "refused")
"""


@pytest.mark.processes
def test_malicious_files_are_read_with_256_megabytes(tmp_path: Path) -> None:
    size = 2**18
    files = {
        "aliases": "a: &a 1\nb: [" + "*a," * 19_000 + "]",
        "bomb": "a0: &a0 [x]\n"
        + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 10}]\n" for n in range(1, 11)),
        "braces": "{a: " * (size // 4),
        "brackets": "[" * size,
        "dashes": "- " * (size // 2),
        "digits": "a: " + "9" * (size - 3),
        "folded": "a: >\n" + " x\n" * (size // 3 - 3),
        "keys": "a:\n" * (size // 3),
        "merges": "a: &a {x: 1}\nb:\n" + "  <<: *a\n" * 4000,
        "questions": "? " * (size // 2),
        "spaces": " " * size,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    command = [sys.executable, "-c", READ_WITH_LIMIT, str(tmp_path)]
    root = Path(yaml_reader.__file__).parents[2]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)

    assert (process.stderr, dict(line.split() for line in process.stdout.splitlines())) == (
        "",
        dict.fromkeys(files, "refused")
        | {"aliases": "2", "folded": "1", "merges": "2"}
        | {"spaces": "0"},
    )
