"""docs/options.md: every option by section; and the JSON Schema of configuration files."""

import json

from convoy.config.option import Option
from convoy.config.option_docs import (
    SUPPORT_LABELS,
    default_as_text,
    full_help,
    json_schema,
    options_summary,
)
from convoy.config.schema import SECTIONS, option_table

_HEAD = """# Options

This page lists every option of a run, with its default, limits and meaning. Look an option up on
the command line:

```console
$ convoy options                             # every option, one per line
$ convoy options lr pipeline-schedule        # details of these two
$ convoy options --json                      # the same as JSON
```

`tools/write_docs.py` generates this page from `convoy/config/sections/`. {summary}.

The column *device* shows where an option has an effect: on *any* device, on *CUDA* only, or on
*none (IPU only)*. An option without effect is accepted and recorded, and its meaning explains why.
`convoy plan` accepts values that are not available in this version; a run rejects them. Options
marked ° may change when a run is resumed; all others require `--override`. Models and datasets
replace some defaults, as in `5; shapes: 3`; `convoy plan --explain` shows the value and the source
of each.


A list takes several arguments, or one argument with commas between its items; write `\\,` for a
comma inside an item. If a value begins with a dash, attach it with an equals sign: `--name=-x`.
"""

_EDITOR = """
## In an editor

A configuration file contains options with `_` in place of `-`, or several named sets of them. An
editor with a [YAML language server](https://github.com/redhat-developer/yaml-language-server)
completes and validates it with [this schema](convoy.schema.json). Name the schema in the first
line of the file:

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
    """A table for each section, and the schema for editors."""
    sections = "".join(_section(name, section) for name, section in SECTIONS.items())
    return _HEAD.format(summary=options_summary()) + sections + _EDITOR


def schema_file() -> str:
    """What `convoy options --schema` prints."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _section(name: str, section: type) -> str:
    rows = [row for row in option_table().values() if row.section == name]
    title = str(section.__doc__).splitlines()[0].rstrip(".")
    head = ["", f"## {title}", "", "| option | default | limits | device | meaning |"]
    return "\n".join([*head, "|---|---|---|---|---|", *map(_row, rows)]) + "\n"


def _row(row: Option) -> str:
    spellings = [name for name in (row.flag, *row.aliases) if name != row.shown_flag]
    also = "".join(f" `{name}`" for name in spellings)
    cells = (
        f"`{row.shown_flag}`" + (" °" if row.changeable_on_resume else ""),
        default_as_text(row),
        str(row.limit) or str(row.value_type),
        SUPPORT_LABELS[row.support],
        full_help(row)
        + (f" Also{also}." if also else "")
        + (f" Environment: `{row.env_var}`." if row.env_var else ""),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
