"""docs/configs.md: every named configuration on a line, with the result stated in its file."""

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

The batch column is micro-batch × accumulation × replicas."""


def configs_page() -> str:
    """A table for each application that has configurations."""
    rows = {row["name"]: row for row in config_rows()}
    parts = [_HEAD]
    for folder, title in GROUPS.items():
        chosen = {
            name: path for name, path in shipped_configs().items() if path.parent.name == folder
        }
        parts += ["", f"## {title}", ""]
        parts += ["| name | network, devices | batch | updates per epoch | result |"]
        parts += ["|---|---|---|---|---|"]
        parts += [_line(rows[name], path) for name, path in chosen.items()]
    return "\n".join(parts) + "\n"


def _line(row: dict[str, Any], path: Path) -> str:
    link = f"[`{row['name']}`](../convoy/configs/{path.relative_to(SHIPPED_DIR)})"
    factors = [row["micro_batch_size"], row["gradient_accumulation"], row["replicas"]]
    batch = f"{' × '.join(map(str, factors))} = {row['global_batch_size']:,}"
    layout = f"{row['replicas']} × {row['stages']}"
    return (
        f"| {link} | {row['model']}, {layout} | {batch} | {row['updates_per_epoch']:,} "
        f"| {_result(path)}{_problem(row)} |"
    )


def _result(path: Path) -> str:
    """The expected result in the header of the file, and the one that the application reported."""
    lines = [line.removeprefix("#").strip() for line in path.read_text().splitlines()]
    found = [line for line in lines if line.startswith(("Expected: ", "Reported there: "))]
    return " ".join(line.removeprefix("Expected: ") for line in found)


def _problem(row: dict[str, Any]) -> str:
    return f" Rejected as written: {row['problem']}." if row["problem"] else ""
