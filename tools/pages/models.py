"""docs/models.md: the networks, their counts, and who else has published them."""

from pathlib import Path
from typing import Any

from convoy.cli.models import network_rows
from convoy.text import short
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
    """Words by hand, then a table for each family, then every published count."""
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
        "| network | options | parameters | published by |",
    ]
    parts += ["|---|---|---|---|", *(_count(one) for one in PUBLISHED)]
    return "\n".join(parts) + "\n"


_SIZES = """For one image of the network's own size and its own number of classes. Activations are
what the backward pass needs, in 32 bits, without recomputation."""
_COLUMNS = "| network | parameters | multiply-adds | activations | image | classes |"
_COUNTS = "Equal to the last parameter: `tests/models/test_published.py`."


def _line(row: dict[str, Any]) -> str:
    return (
        f"| `{row['name']}` | {row['parameters']:,} | {short(row['macs'])} "
        f"| {short(row['activation_bytes'])}B | {row['image_size']} | {row['classes']} |"
    )


def _count(one: Published) -> str:
    options = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in one.options)
    return f"| `{one.model}` | {options} | {one.parameters:,} | {one.source} |"
