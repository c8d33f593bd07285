"""convoy models"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from convoy.cli.args import make_parser, parse_command
from convoy.cli.output import print_result
from convoy.config.schema import build_config
from convoy.config.sections.network import MODELS
from convoy.errors import ExitCode
from convoy.models.layers import LayerCost
from convoy.models.network import NetworkPlan, plan_network
from convoy.planning.activations import FP32_BYTES, saved_elements
from convoy.planning.stages import split_points, splits_as_text
from convoy.text import format_si

DESCRIPTION = """\
List the models with their parameter counts, multiply-adds (MACs) and activation memory for
one image. With a name, list its layers; with --splits, show the MACs, parameters and activations
before and after each possible split point."""


def main(argv: list[str]) -> int:
    parser = make_parser("models", DESCRIPTION)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="name of a model")
    add("--splits", action="store_true", help="show the cost on both sides of each split point")
    add("--json", action="store_true", help="print as JSON")
    args = parse_command(parser, argv)
    if args.name is None:
        rows = network_rows()
        lines = _format_table(rows)
    elif args.splits:
        points = split_points(_plan_default_network(args.name), micro_batch_size=1)
        rows, lines = [asdict(point) for point in points], iter(splits_as_text(points))
    else:
        costs = _plan_default_network(args.name).costs
        rows = [
            {"name": cost.name, "parameters": cost.parameters, "macs": cost.macs} for cost in costs
        ]
        lines = _format_layer_table(costs)
    print_result(args.json, rows, lines)
    return ExitCode.DONE


def _plan_default_network(name: str) -> NetworkPlan:
    """Plan a network with its default options; an unknown name is an error with near names."""
    return plan_network(build_config({"model": name, "data": "generated", **MODELS[name].defaults}))


def network_rows() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "family": MODELS[name].family,
            "parameters": plan.parameters,
            "macs": plan.macs,
            "activation_bytes": FP32_BYTES
            * sum(saved_elements(plan.layers, plan.costs[0].input_shapes[0])),
            "image_size": plan.image_size,
            "classes": plan.classes,
            "layers": len(plan.layers),
        }
        for name, plan in ((name, _plan_default_network(name)) for name in MODELS)
    ]


def _format_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(row["name"]) for row in rows)
    yield (
        f"{'name':<{width}} {'parameters':>12} {'multiply-adds':>14} {'activations':>12} "
        f"{'image':>6} {'classes':>8}"
    )
    for row in rows:
        yield (
            f"{row['name']:<{width}} {row['parameters']:>12,} {format_si(row['macs']):>14} "
            f"{format_si(row['activation_bytes']) + 'B':>12} {row['image_size']:>6} "
            f"{row['classes']:>8}"
        )


def _format_layer_table(costs: Sequence[LayerCost]) -> Iterator[str]:
    width = max(len(cost.name) for cost in costs)
    yield f"{'layer':<{width}} {'parameters':>12} {'multiply-adds':>14}  output shapes"
    for cost in costs:
        shapes = " + ".join(
            f"{shape.channels}×{shape.size}×{shape.size}" for shape in cost.output_shapes
        )
        yield f"{cost.name:<{width}} {cost.parameters:>12,} {format_si(cost.macs):>14}  {shapes}"
