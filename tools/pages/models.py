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
    """Hand-written text, then a table for each family, then every published count."""
    parts = [_HEAD.read_text(encoding="utf-8").rstrip(), "", "## Sizes", "", _SIZES]
    rows = network_rows()
    for family, title in _TITLES.items():
        parts += ["", f"### {title}", "", _COLUMNS, "|---|---|---|---|---|---|"]
        parts += [_line(row) for row in rows if row["family"] == family]
    parts += [
        "",
        "## Published counts",
        "",
        _COUNTS,
        "",
        "| model | options | parameters | published by |",
    ]
    parts += ["|---|---|---|---|", *(_count(one) for one in PUBLISHED)]
    return "\n".join(parts) + "\n"


_SIZES = """For one image at the default size and number of classes of the model. Activations are
the tensors that the backward pass needs, in 32 bits, without recomputation."""
_COLUMNS = "| model | parameters | multiply-adds | activations | image | classes |"
_COUNTS = """All counts match exactly: `tests/models/test_published.py`. The applications are
Graphcore's CNN examples for the IPU."""


def _line(row: dict[str, Any]) -> str:
    return (
        f"| `{row['name']}` | {row['parameters']:,} | {format_si(row['macs'])} "
        f"| {format_si(row['activation_bytes'])}B | {row['image_size']} | {row['classes']} |"
    )


def _count(one: Published) -> str:
    options = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in one.options)
    return f"| `{one.model}` | {options} | {one.parameters:,} | {one.source} |"
