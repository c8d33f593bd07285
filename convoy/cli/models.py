"""convoy models"""

import json
from typing import Any

from convoy.cli.arguments import read_plain
from convoy.config.catalog import MODELS
from convoy.config.command_line import Parser
from convoy.config.schema import build_config
from convoy.errors import ExitCode
from convoy.plan.network import plan_network
from convoy.plan.wording import short

SAYS = "The networks there are, with their size and work; a name shows its layers."


def main(words: list[str]) -> int:
    """A table, or the layers of one network, where a stage may begin."""
    own = read_plain("models", words, SAYS, _add_own)
    if own.name is not None:
        MODELS[own.name]  # an unknown name is answered with the near ones
        _print_layers(own.name, own.json)
        return ExitCode.DONE
    rows = [_row(name) for name in MODELS]
    if own.json:
        print(json.dumps(rows, indent=1))
        return ExitCode.DONE
    print(f"{'name':<12} {'parameters':>12} {'multiply-adds':>14} {'image':>6} {'classes':>8}")
    for row in rows:
        print(
            f"{row['name']:<12} {row['parameters']:>12,} {short(row['macs']):>14} "
            f"{row['image_size']:>6} {row['classes']:>8}"
        )
    return ExitCode.DONE


def _row(name: str) -> dict[str, Any]:
    plan = plan_network(build_config({"model": name, "data": "generated"}))
    return {
        "name": name,
        "parameters": plan.parameters,
        "macs": plan.macs,
        "image_size": plan.image_size,
        "classes": plan.classes,
        "layers": len(plan.layers),
    }


def _print_layers(name: str, as_json: bool) -> None:
    costs = plan_network(build_config({"model": name, "data": "generated"})).costs
    if as_json:
        rows = [{"name": c.name, "parameters": c.parameters, "macs": c.macs} for c in costs]
        print(json.dumps(rows, indent=1))
        return
    print(f"{'layer':<28} {'parameters':>12} {'multiply-adds':>14}  tensors out")
    for cost in costs:
        bundle = " + ".join(f"{one.channels}×{one.size}×{one.size}" for one in cost.bundle_out)
        print(f"{cost.name:<28} {cost.parameters:>12,} {short(cost.macs):>14}  {bundle}")


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the layers of this one")
    parser.add_argument("--json", action="store_true", help="print as JSON")
