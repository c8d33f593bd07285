"""docs/configs.md: a row for each named configuration, with the accuracy stated in its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convoy.cli.configs import config_rows
from convoy.config.named_configs import SHIPPED_DIR, shipped_configs

GROUPS = {
    SHIPPED_DIR.name: "convoy",
    "pytorch": "PyTorch application",
    "tensorflow": "TensorFlow application",
    "inference": "PyTorch application, inference",
}

_HEAD = """# Named configurations

A named configuration sets the options of a complete run; `--config NAME` selects it:

```console
$ convoy plan --config resnet50-pipeline4
```

`tools/write_docs.py` generates this page from `convoy/configs/`. `convoy configs NAME` shows a
configuration with every value, `convoy configs` lists all of them. To use your own file, pass
`--config-path FILE`, and `--config NAME` if the file contains several configurations.
[Coming from the IPU applications](coming-from-ipu.md) covers files written for these applications.

*Layout* is replicas × stages, *batch* the samples of an update as micro-batch size × gradient
accumulation × replicas. The notes contain the top-1 accuracy if it was measured with convoy or
published by Graphcore; configurations without the note *Measured* have not been trained with
convoy. Configurations with `base` or `common` in their names contain options that others share; do
not train with them directly. The
applications are Graphcore's CNN examples for the IPU."""


def configs_page() -> str:
    """A table for each application that has configurations."""
    rows = {row["name"]: row for row in config_rows()}
    lines = [_HEAD]
    for folder, title in GROUPS.items():
        paths = {
            name: path for name, path in shipped_configs().items() if path.parent.name == folder
        }
        lines += ["", f"## {title}", ""]
        lines += ["| name | network | layout | batch | updates per epoch | notes |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_line(rows[name], path) for name, path in paths.items()]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any], path: Path) -> str:
    link = f"[`{row['name']}`](../convoy/configs/{path.relative_to(SHIPPED_DIR)})"
    factors = [row["micro_batch_size"], row["gradient_accumulation"], row["replicas"]]
    batch = f"{' × '.join(map(str, factors))} = {row['global_batch_size']:,}"
    layout = f"{row['replicas']} × {row['stages']}"
    return (
        f"| {link} | {row['model']} | {layout} | {batch} | {row['updates_per_epoch']:,} "
        f"| {' '.join(_notes(row, path))} |"
    )


_UNKNOWN = "not measured yet."


def _notes(row: dict[str, Any], path: Path) -> Iterator[str]:
    """The results in the header of the file, and why it is rejected."""
    lines = [line.removeprefix("#").strip() for line in path.read_text().splitlines()]
    for start, source in (("Published by Graphcore: ", "Published"), ("Result: ", "Measured")):
        for line in lines:
            if line.startswith(start) and not line.endswith(_UNKNOWN):
                yield f"{source}: {line.removeprefix(start)}"
    if row["problem"]:
        yield f"Rejected as written: {row['problem']}."
