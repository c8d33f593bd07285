"""docs/options.md: every option, section by section; and the schema of configurations."""

import json

from convoy.config.option import Option, spelled
from convoy.config.schema import SECTIONS, option_table
from convoy.config.support import WHERE, json_schema, meaning, summary

_HEAD = """# Options

Written by `tools/write_docs.py` from `convoy/config/sections/`.

{summary}.

```console
$ convoy options                             # every option in one line
$ convoy options lr pipeline-schedule        # all there is to know of these two
$ convoy options --json                      # the same for a program
```

The column *works* says where an option does anything: *here* (on any device), on *CUDA* only, with
what it does there, or *nowhere*: it has no counterpart, is taken and recorded, and its meaning says
why it can do nothing. A value that is not available in this version can be planned (`convoy plan`);
a run refuses it. An option marked ° may change when a run is resumed; any other needs `--override`.

A list takes several words, or one with commas between its items; `\\,` is a comma inside an item. A
text that begins with a dash stands behind an equals sign: `--name=-x`.
"""

_EDITOR = """
## In an editor

A configuration file holds options with `_` in place of `-`, or several such mappings by name. An
editor with a [YAML language server](https://github.com/redhat-developer/yaml-language-server)
completes and checks it by [this schema](convoy.schema.json), which its first line names:

```console
$ convoy options --schema > convoy.schema.json
```

```yaml
# yaml-language-server: $schema=convoy.schema.json
model: resnet20
lr: 0.05
```
"""


def options_page() -> str:
    """A table for each section, and how to write a file with the help of an editor."""
    sections = "".join(_section(name, section) for name, section in SECTIONS.items())
    return _HEAD.format(summary=summary()) + sections + _EDITOR


def schema_file() -> str:
    """What `convoy options --schema` prints."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _section(name: str, section: type) -> str:
    rows = [row for row in option_table().values() if row.section == name]
    title = str(section.__doc__).splitlines()[0].rstrip(".")
    head = ["", f"## {title}", "", "| option | default | limits | works | meaning |"]
    return "\n".join([*head, "|---|---|---|---|---|", *map(_row, rows)]) + "\n"


def _row(row: Option) -> str:
    declared = row.declared
    also = "".join(f" `{spelling}`" for spelling in declared.also)
    cells = (
        f"`{row.flag}`" + (" °" if declared.free else ""),
        spelled(row.default),
        str(declared.limit) or str(row.kind),
        WHERE[declared.support],
        meaning(row)
        + (f" Also{also}." if also else "")
        + (f" Environment: `{declared.env}`." if declared.env else ""),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
