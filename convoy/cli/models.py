"""convoy models"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from convoy.cli.args import read_plain
from convoy.cli.output import show
from convoy.config.catalog import MODELS
from convoy.config.command_line import Parser
from convoy.config.schema import build_config
from convoy.errors import ExitCode
from convoy.models.layers import LayerCost
from convoy.models.network import NetworkPlan, plan_network
from convoy.plan.activations import WHOLE, kept_elements
from convoy.plan.stages import split_points, splits_as_text
from convoy.text import short

SAYS = """The networks there are, with their size, work and memory for one image.
A name shows its layers; with --splits, what lies on either side of a cut before each of them."""


def main(words: list[str]) -> int:
    own = read_plain("models", words, SAYS, _add_own)
    if own.name is None:
        rows = network_rows()
        lines = _table(rows)
    elif own.splits:
        points = split_points(_plan(own.name), micro_batch_size=1)
        rows, lines = [asdict(point) for point in points], iter(splits_as_text(points))
    else:
        costs = _plan(own.name).costs
        rows = [{"name": one.name, "parameters": one.parameters, "macs": one.macs} for one in costs]
        lines = _layer_table(costs)
    show(own.json, rows, lines)
    return ExitCode.DONE


def _plan(name: str) -> NetworkPlan:
    """The network as it is when nothing else is asked for; an unknown name gets near ones."""
    return plan_network(build_config({"model": name, "data": "generated", **MODELS[name].defaults}))


def network_rows() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "family": MODELS[name].family,
            "parameters": plan.parameters,
            "macs": plan.macs,
            "activation_bytes": WHOLE * sum(kept_elements(plan.layers, plan.costs[0].bundle_in[0])),
            "image_size": plan.image_size,
            "classes": plan.classes,
            "layers": len(plan.layers),
        }
        for name, plan in ((name, _plan(name)) for name in MODELS)
    ]


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    wide = max(len(row["name"]) for row in rows)
    yield (
        f"{'name':<{wide}} {'parameters':>12} {'multiply-adds':>14} {'activations':>12} "
        f"{'image':>6} {'classes':>8}"
    )
    for row in rows:
        yield (
            f"{row['name']:<{wide}} {row['parameters']:>12,} {short(row['macs']):>14} "
            f"{short(row['activation_bytes']) + 'B':>12} {row['image_size']:>6} "
            f"{row['classes']:>8}"
        )


def _layer_table(costs: Sequence[LayerCost]) -> Iterator[str]:
    wide = max(len(cost.name) for cost in costs)
    yield f"{'layer':<{wide}} {'parameters':>12} {'multiply-adds':>14}  tensors out"
    for cost in costs:
        bundle = " + ".join(f"{one.channels}×{one.size}×{one.size}" for one in cost.bundle_out)
        yield f"{cost.name:<{wide}} {cost.parameters:>12,} {short(cost.macs):>14}  {bundle}"


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the layers of this one")
    parser.add_argument("--splits", action="store_true", help="show what a cut there would cost")
    parser.add_argument("--json", action="store_true", help="print as JSON")
