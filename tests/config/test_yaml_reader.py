"""Mappings, lines, merges, tags and limits of a YAML configuration."""

from pathlib import Path
from typing import Any

import pytest

from convoy.config.yaml_reader import MAX_DEPTH, MAX_NODES, YamlEntry, parse_yaml, read_yaml
from convoy.errors import ConfigError


def parse_plain(text: str) -> dict[str, Any]:
    return {key: entry.to_python() for key, entry in parse_yaml(text.encode(), "run.yaml").items()}


def error_message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse_yaml(text.encode(), "run.yaml")
    return str(error.value)


def test_a_file_is_read_with_the_line_of_every_key_and_item(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# note\nlr: 1e-3\nsplits:\n  - a\n  -\n    b\n\nmix: {alpha: 1}\n")

    assert read_yaml(path) == {
        "lr": YamlEntry(0.001, 2),
        "splits": YamlEntry([YamlEntry("a", 4), YamlEntry("b", 6)], 3),
        "mix": YamlEntry({"alpha": YamlEntry(1, 8)}, 8),
    }


def test_to_python_returns_the_value_without_lines() -> None:
    entry = parse_yaml(b"a: [1, {b: [x, ~]}, 2.5]", "x")["a"]

    assert entry.to_python() == [1, {"b": ["x", None]}, 2.5]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a note\n", "---\n", "---\n...\n", "\ufeff"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert parse_yaml(text.encode(), "x") == {}


@pytest.mark.parametrize("text", ["\nword", "\n- a\n- b", "\n'quoted'", "\n5", "\n[]"])
def test_a_top_level_that_is_not_a_mapping_is_refused(text: str) -> None:
    assert error_message(text).startswith("run.yaml, line 2: the top level must be a mapping")


def test_the_booleans_of_yaml_1_1_stay_text() -> None:
    assert parse_plain("epochs: no\non: off\nb: True\nc: yes") == {
        "epochs": "no",
        "on": "off",
        "b": True,
        "c": "yes",
    }


def test_odd_numbers_and_dates_stay_text() -> None:
    text = "a: 0x1F\nb: 0o7\nc: 1_000\nd: 1:30\ne: 2001-01-01\nf: 2001-12-14t21:59:43.10-05:00"

    assert all(isinstance(value, str) for value in parse_plain(text).values())


@pytest.mark.parametrize(
    "value", ["'1'", '"1e-3"', "'true'", '"~"', "''", "'010'", "|\n  1", ">-\n  2"]
)
def test_quoted_and_block_scalars_are_always_text(value: str) -> None:
    assert isinstance(parse_plain(f"a: {value}")["a"], str)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("010", "'size': '010' starts with a zero"),
        (".nan", "'size': .nan is not a finite number"),
        ("-.inf", "'size': -.inf is not a finite number"),
        ("1e999", "'size': '1e999' is not a finite number"),
        ("1234567890123456789", "'size': an integer of 19 digits; the limit is 18"),
        ("[1, 2, 010]", "'size': '010' starts with a zero"),
        ('"\\0"', "'size': the text contains the control character U+0000"),
        ("!!int x", "'size': 'x' does not match its tag !!int"),
    ],
)
def test_a_wrong_value_is_reported_with_its_key_and_line(value: str, reason: str) -> None:
    assert error_message(f"a: 1\nsize: {value}\n").startswith(f"run.yaml, line 2: {reason}")


def test_a_duplicate_key_is_refused_with_both_lines() -> None:
    assert error_message("a: 1\nb: 2\n\na: 1\n") == (
        "run.yaml, line 4: the key 'a' is already set on line 1"
    )


@pytest.mark.parametrize("text", ["b: {a: 1, 'a': 2}", 'b:\n  - a: 1\n    "a": 2', "? a\n? a"])
def test_a_duplicate_key_is_found_at_every_level_and_in_every_spelling(text: str) -> None:
    assert "the key 'a' is already set on line" in error_message(text)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("1", "1"), ("true", "True"), ("~", "None"), ("1.5", "1.5"), ("?\n", "None")),
        *(("? [a]\n", "with several values"), ("? {a: 1}\n", "with several values")),
    ],
)
def test_a_key_that_is_not_text_is_refused(key: str, name: str) -> None:
    assert error_message(f"a: 1\n{key}: 2") == (
        f"run.yaml, line 2: the key {name} is not a string; put it in quotes"
    )


def test_a_number_in_quotes_may_be_a_key() -> None:
    assert parse_plain("'1': a\n!!str 2: b\n&k c: d\n? e\n: *k\n") == {
        "1": "a",
        "2": "b",
        "c": "d",
        "e": "c",
    }


def test_an_alias_repeats_a_value() -> None:
    entries = parse_yaml(b"a: &x [1]\nb: *x\nc:\n  - *x\n", "x")

    assert (entries["b"].line, entries["b"].to_python()) == (2, [1])
    assert entries["c"].to_python() == [[1]]


def test_keys_of_the_mapping_override_merged_ones() -> None:
    base = "base: &base {a: 1, b: 1}\n"

    assert parse_plain(base + "c: {<<: *base, a: 2}")["c"] == {"a": 2, "b": 1}
    assert parse_plain(base + "c: {a: 2, <<: *base}")["c"] == {"a": 2, "b": 1}


def test_a_merged_key_keeps_the_line_where_it_was_set() -> None:
    entries = parse_yaml(b"base: &base\n  a: 1\nc:\n  <<: *base\n  b: 2\n", "x")

    assert entries["c"].value == {"a": YamlEntry(1, 2), "b": YamlEntry(2, 5)}


@pytest.mark.parametrize("merge", ["  <<: *one\n  <<: *two\n", "  <<: [*one, *two]\n"])
def test_the_later_of_two_parents_applies(merge: str) -> None:
    parents = "one: &one {a: 1, b: 1, c: 1}\ntwo: &two {b: 2, c: 2}\n"

    assert parse_plain(f"{parents}both:\n  c: 3\n{merge}")["both"] == {"a": 1, "b": 2, "c": 3}


def test_parents_may_have_parents() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\nd: {<<: {x: 4}}"

    assert parse_plain(text)["c"] == {"x": 1, "y": 2, "z": 3}
    assert parse_plain(text)["d"] == {"x": 4}


@pytest.mark.parametrize("value", ["1", "x", "[1]", "", "[[{}]]"])
def test_merging_anything_but_a_mapping_is_refused(value: str) -> None:
    assert error_message(f"a: 1\n<<: {value}\n").startswith("run.yaml, line 2: `<<` merges only")


def test_a_quoted_merge_key_is_an_ordinary_key() -> None:
    assert parse_plain("'<<': 1\nb: <<") == {"<<": 1, "b": "<<"}


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "a: &a {b: {c: *a}}", "a: &a {<<: *a}", "&a x: &b [*b]"]
)
def test_an_alias_that_contains_itself_is_refused(text: str) -> None:
    assert "contains an alias to itself" in error_message(text)


def test_an_alias_without_anchor_and_an_anchor_set_twice_are_refused() -> None:
    assert error_message("a: 1\nb: *x") == "run.yaml, line 2: not YAML: found undefined alias 'x'"
    assert error_message("a: &x 1\nb: &x 2") == (
        "run.yaml, line 2: not YAML: found duplicate anchor 'x'; first occurrence on line 1, "
        "second occurrence"
    )


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("!!python/object/apply:os.system ['true']", "!!python/object/apply:os.system"),
        ("!!python/name:os.system ''", "!!python/name:os.system"),
        ("!!python/tuple [1]", "!!python/tuple"),
        ("!!python/object/new:dict {}", "!!python/object/new:dict"),
        ("!!binary aGk=", "!!binary"),
        ("!!timestamp 2001-01-01", "!!timestamp"),
        ("!!set {a}", "!!set"),
        ("!custom 1", "!custom"),
        ("!!merge x", "!!merge"),
        ("!<str> x", "str"),
        ("!!map 1", "!!map"),
        ("!!str [1]", "!!str"),
        ("!!seq {a: 1}", "!!seq"),
    ],
)
def test_a_tag_that_is_unknown_or_does_not_match_is_refused(tag: str, name: str) -> None:
    assert error_message(f"a: 1\nb: {tag}").startswith(
        f"run.yaml, line 2: the tag '{name}' is not allowed here, only !!"
    )


def test_a_tag_directive_does_not_enable_other_tags() -> None:
    message = error_message("%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system ''\n")

    assert message.startswith("run.yaml, line 3: the tag '!!python/name:os.system' is not allowed")


def test_core_tags_set_the_type() -> None:
    assert parse_plain(
        "!!map {a: !!str 1, b: !!seq [!!int '2', !!float 3], c: !!null '', d: !!bool true}"
    ) == {
        "a": "1",
        "b": [2, 3.0],
        "c": None,
        "d": True,
    }


@pytest.mark.parametrize("form", ["['touch {}']", "\n  - touch {}\n", "{{command: 'touch {}'}}"])
def test_a_malicious_tag_runs_no_command(form: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "evil.yaml"
    path.write_text("a: !!python/object/apply:os.system " + form.format(marker))
    with pytest.raises(ConfigError, match=r"line 1: the tag '!!python/object/apply:os\.system'"):
        read_yaml(path)

    assert not marker.exists()


def test_an_alias_bomb_is_refused() -> None:
    levels = ["l0: &l0 [" + ",".join("x" * 10) + "]"]
    levels += [f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]

    assert "more than 20,000 values" in error_message("\n".join(levels))


def test_a_merge_bomb_is_refused() -> None:
    levels = ["l0: &l0 {a: 1}"]
    levels += [f"l{n}: &l{n} {{<<: [{','.join([f'*l{n - 1}'] * 10)}]}}" for n in range(1, 10)]

    assert "more than 20,000 values" in error_message("\n".join(levels))


def test_the_limit_of_values_is_exact() -> None:
    def items(count: int) -> str:  # the mapping, the key and the list count as three values
        return "a: [" + "1," * (count - 3) + "]"

    assert len(parse_plain(items(MAX_NODES))["a"]) == MAX_NODES - 3
    assert "more than 20,000 values" in error_message(items(MAX_NODES + 1))


@pytest.mark.parametrize(
    "nested", ["a: " + "[" * 3000 + "]" * 3000, "a: " + "{a: " * 3000, "- " * 3000]
)
def test_three_thousand_levels_are_refused(nested: str) -> None:
    assert "nested more than 20 levels deep" in error_message(nested)


def test_the_limit_of_depth_is_exact() -> None:
    def nested(depth: int) -> str:
        return "a: " + "[" * (depth - 1) + "]" * (depth - 1)

    assert list(parse_plain(nested(MAX_DEPTH))) == ["a"]
    assert "nested more than 20" in error_message(nested(MAX_DEPTH + 1))


def test_the_limit_of_depth_includes_aliases() -> None:
    chain = ["a0: &a0 []"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 30)]

    assert "nested more than 20 levels deep" in error_message("\n".join(chain))


@pytest.mark.parametrize("merge", ["*a{}", "[*a{}]"])
def test_a_long_chain_of_parents_does_not_count_as_nesting(merge: str) -> None:
    chain = ["a0: &a0 {x: 0}"]
    chain += [f"a{n}: &a{n} {{<<: {merge.format(n - 1)}, x: {n}}}" for n in range(1, 40)]

    assert parse_plain("\n".join(chain))["a39"] == {"x": 39}
