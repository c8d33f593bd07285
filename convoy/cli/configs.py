"""convoy configs"""

import json
from dataclasses import asdict
from typing import Any

from convoy.cli.arguments import read_plain
from convoy.config.command_line import Parser
from convoy.config.named import read_named, shipped_names
from convoy.config.resolve import Asked, Resolved, resolve
from convoy.config.written import settings_as_yaml
from convoy.errors import ExitCode
from convoy.plan.plan import plan_run

SAYS = "The named configurations there are; a name shows it with every value resolved."


def main(words: list[str]) -> int:
    """A table, or one configuration whole."""
    own = read_plain("configs", words, SAYS, _add_own)
    if own.name is not None:
        _print_one(_resolved(own.name), own.json)
        return ExitCode.DONE
    rows = [_row(name) for name in shipped_names()]
    if own.json:
        print(json.dumps(rows, indent=1))
        return ExitCode.DONE
    print(f"{'name':<24} {'model':<12} {'data':<10} {'replicas':>8} {'stages':>6} {'batch':>6}")
    for row in rows:
        print(
            f"{row['name']:<24} {row['model']:<12} {row['data']:<10} {row['replicas']:>8} "
            f"{row['stages']:>6} {row['global_batch_size']:>6}"
        )
    return ExitCode.DONE


def _resolved(name: str) -> Resolved:
    named, problems = read_named(name, None)
    # The folder of the data is the reader's; any will do to resolve the rest.
    return resolve(Asked(named=named, problems=problems, environment={"DATA_DIR": "DATA_DIR"}))


def _print_one(resolved: Resolved, as_json: bool) -> None:
    if as_json:
        options = {name: asdict(setting) for name, setting in resolved.settings.items()}
        print(json.dumps(options, indent=1))
        return
    print(settings_as_yaml(resolved.settings), end="")


def _row(name: str) -> dict[str, Any]:
    plan = plan_run(_resolved(name).config)
    return {
        "name": name,
        "model": plan.config.network.model,
        "data": plan.config.data.data,
        "replicas": plan.batch.replicas,
        "stages": len(plan.stages),
        "micro_batch_size": plan.batch.micro_batch_size,
        "gradient_accumulation": plan.batch.gradient_accumulation,
        "global_batch_size": plan.batch.samples_per_update,
    }


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one")
    parser.add_argument("--json", action="store_true", help="print as JSON")
