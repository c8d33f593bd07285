"""The three ways to write parameters, and what is refused in each."""

import pytest

from convoy.bench.definition import combinations
from convoy.bench.sweeps import MOST_VARIANTS, read_sweeps, scalar_text
from convoy.config.values import WrongType
from convoy.config.yaml_file import Entry, parse_yaml


def entry(text: str) -> Entry:
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
