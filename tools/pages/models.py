"""docs/models.md: the models, their parameter counts, and where these were published."""

from pathlib import Path
from typing import Any

from convoy.cli.models import network_rows
from convoy.text import format_si
from pages.published import PUBLISHED, Published

_HEAD = Path(__file__).with_name("models_head.md")
_TITLES = {
    "resnet": "ResNet",
    "resnext": "ResNeXt",
    "efficientnet": "EfficientNet",
    "mobilenet": "MobileNet",
    "squeezenet": "SqueezeNet",
}


def models_page() -> str:
    """The hand-written text, a table for each family, and all published counts."""
    lines = [_HEAD.read_text(encoding="utf-8").rstrip(), "", "## Sizes", "", _SIZES]
    rows = network_rows()
    for family, title in _TITLES.items():
        lines += ["", f"### {title}", "", _COLUMNS, "|---|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row["family"] == family]
    lines += [
        "",
        "## Published counts",
        "",
        _COUNTS,
        "",
        "| model | options | parameters | published by |",
    ]
    lines += ["|---|---|---|---|", *map(_count, PUBLISHED)]
    return "\n".join(lines) + "\n"


_SIZES = """For one image at the default size and number of classes of the model. Multiply-adds are
those of convolutions and linear layers, as in the tables of torchvision; stages are balanced by
these plus one unit per element of a norm. Activations are the tensors that the backward pass
needs, in 32 bits, without recomputation."""
_COLUMNS = "| model | parameters | multiply-adds | activations | image | classes |"
_COUNTS = """All counts match exactly: `tests/models/test_published.py`. The applications are
Graphcore's CNN examples for the IPU."""


def _line(row: dict[str, Any]) -> str:
    return (
        f"| `{row['name']}` | {row['parameters']:,} | {format_si(row['macs'])} "
        f"| {format_si(row['activation_bytes'])}B | {row['image_size']} | {row['classes']} |"
    )


def _count(published: Published) -> str:
    options = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in published.options)
    return f"| `{published.model}` | {options} | {published.parameters:,} | {published.source} |"
