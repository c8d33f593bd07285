"""docs/configs.md: every named configuration on a line, with what its file says of it."""

from pathlib import Path
from typing import Any

from convoy.cli.configs import all_rows
from convoy.config.named import SHIPPED, shipped

GROUPS = {
    SHIPPED.name: "Our own",
    "pytorch": "Of the PyTorch application",
    "tensorflow": "Of the TensorFlow application",
    "inference": "Of the PyTorch application, for inference",
}

_HEAD = """# Named configurations

Written by `tools/write_docs.py` from `convoy/configs/`.

`--config NAME` takes one, `convoy configs NAME` shows it with every value, `convoy configs` lists
them all. A configuration of your own stands in a file: `--config-path FILE`, and `--config NAME` if
the file holds several. [Coming from the IPU](coming-from-ipu.md) tells of
files written for the applications.

A batch is micro-batch × accumulation × replicas."""


def configs_page() -> str:
    """A table for each place a configuration comes from."""
    rows = {row["name"]: row for row in all_rows()}
    parts = [_HEAD]
    for folder, title in GROUPS.items():
        chosen = {name: path for name, path in shipped().items() if path.parent.name == folder}
        parts += ["", f"## {title}", ""]
        parts += ["| name | network, devices | batch | updates per epoch | result |"]
        parts += ["|---|---|---|---|---|"]
        parts += [_line(rows[name], path) for name, path in chosen.items()]
    return "\n".join(parts) + "\n"


def _line(row: dict[str, Any], path: Path) -> str:
    link = f"[`{row['name']}`](../convoy/configs/{path.relative_to(SHIPPED)})"
    factors = [row["micro_batch_size"], row["gradient_accumulation"], row["replicas"]]
    batch = f"{' × '.join(map(str, factors))} = {row['global_batch_size']:,}"
    layout = f"{row['replicas']} × {row['stages']}"
    return (
        f"| {link} | {row['model']}, {layout} | {batch} | {row['updates_per_epoch']:,} "
        f"| {_result(path)}{_problem(row)} |"
    )


def _result(path: Path) -> str:
    """What the header of the file promises, and what the application reported."""
    lines = [line.removeprefix("#").strip() for line in path.read_text().splitlines()]
    found = [line for line in lines if line.startswith(("Expected: ", "Reported there: "))]
    return " ".join(line.removeprefix("Expected: ") for line in found)


def _problem(row: dict[str, Any]) -> str:
    return f" Refused as it is: {row['problem']}." if row["problem"] else ""
