"""convoy options: every option with its meaning, as a table and for programs."""

import json

from running import convoy

from convoy.config.schema import option_table


def test_the_table_has_a_line_for_every_option() -> None:
    said = convoy("options")
    flags = [line.split()[0] for line in said.out.splitlines()]

    assert (said.code, said.err) == (0, "")
    assert flags == [row.flag for row in option_table().values()]


def test_the_list_for_programs_tells_all_of_an_option() -> None:
    rows = {row["name"]: row for row in json.loads(convoy("options", "--json").out)}

    assert list(rows) == list(option_table())
    assert rows["data_dir"] == {
        "name": "data_dir",
        "flag": "--data-dir",
        "section": "data",
        "type": "text",
        "limits": "",
        "default": None,
        "shown": "–",
        "also": ["--imagenet-data-path"],
        "environment": "DATA_DIR",
        "help": "Folder of the data set.",
    }
    assert (rows["lr"]["limits"], rows["lr"]["shown"]) == ("≥ 0, ≤ 1e+30", "0.1")
    assert rows["lr_epoch_decay"]["type"] == "list of number"
