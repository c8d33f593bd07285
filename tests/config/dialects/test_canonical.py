"""The canonical dialect is the option table itself."""

from collections import Counter

from convoy.config.dialects.canonical import canonical
from convoy.config.schema import option_table


def test_every_option_is_reached_by_its_own_flag() -> None:
    reached = {flag.spelling: flag.to for flag in canonical().flags}

    assert {row.flag: row.name for row in option_table().values()}.items() <= reached.items()


def test_no_spelling_stands_twice() -> None:
    counts = Counter(flag.spelling for flag in canonical().flags)

    assert [spelling for spelling, count in counts.items() if count > 1] == []


def test_every_switch_can_be_turned_off_and_nothing_else_takes_no_value() -> None:
    switches = {row.name for row in option_table().values() if row.kind.base is bool}
    off = {flag.to for flag in canonical().flags if flag.spelling.startswith("--no-")}

    assert off == switches
    assert {flag.to for flag in canonical().flags if flag.means is not None} == switches


def test_older_spellings_set_the_same_option() -> None:
    reached = {flag.spelling: flag.to for flag in canonical().flags}

    assert reached["--output"] == "checkpoint_output_path"
    assert reached["--imagenet-data-path"] == "data_dir"
    assert all(
        reached[spelling] == row.name
        for row in option_table().values()
        for spelling in row.declared.also
    )


def test_it_brings_no_defaults_of_its_own() -> None:
    assert canonical().settings({}) == {}
