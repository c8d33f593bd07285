"""convoy configs"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from convoy.cli.args import read_plain
from convoy.cli.output import say
from convoy.config.command_line import Parser
from convoy.config.named import read_named, shipped_names
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import RunConfig
from convoy.config.settings import settings_as_yaml
from convoy.errors import ConfigError, ExitCode
from convoy.plan.plan import plan_batch, plan_run, usual_samples

SAYS = "The named configurations there are; a name shows it with every value resolved."

# A row of the list, but for its name and what speaks against it.
_FIGURES = (
    *("model", "data", "devices", "replicas", "stages", "micro_batch_size"),
    *("gradient_accumulation", "global_batch_size", "updates_per_epoch"),
)
_TITLES = {
    "name": "name",
    "model": "model",
    "devices": "devices",
    "global_batch_size": "batch",
    "updates_per_epoch": "updates/epoch",
    "problem": "problem",
}


def main(words: list[str]) -> int:
    """A table, or one configuration whole."""
    own = read_plain("configs", words, SAYS, _add_own)
    if own.name is not None:
        _print_one(_resolved(own.name), own.json)
        return ExitCode.DONE
    rows = all_rows()
    if own.json:
        print(json.dumps(rows, indent=1))
    else:
        say(list(_table(rows)))
    return ExitCode.DONE


def all_rows() -> list[dict[str, Any]]:
    """Every configuration, by model, devices and name."""
    return sorted(map(_row, shipped_names()), key=_place)


def _resolved(name: str) -> Resolved:
    named, problems = read_named(name, None)
    return resolve(RequestedOptions(named=named, problems=problems, environment={}))


def _print_one(resolved: Resolved, as_json: bool) -> None:
    if as_json:
        options = {name: asdict(setting) for name, setting in resolved.settings.items()}
        print(json.dumps(options, indent=1))
        return
    print(settings_as_yaml(resolved.settings), end="")


def _row(name: str) -> dict[str, Any]:
    """Its figures, and what speaks against it. One that cannot be resolved has no figures."""
    try:
        config = _resolved(name).config
    except ConfigError as error:
        return {"name": name, **dict.fromkeys(_FIGURES), "problem": _first_line(error)}
    return {"name": name, **_figures(config), "problem": _problem(config)}


def _figures(config: RunConfig) -> dict[str, Any]:
    """Arithmetic that holds even if the plan is refused."""
    batch, stages = plan_batch(config), config.pipeline.planned_stages
    in_line = -(-stages // config.pipeline.stages_per_device)
    return {
        "model": config.network.model,
        "data": config.data.data,
        "devices": in_line * batch.replicas,
        "replicas": batch.replicas,
        "stages": stages,
        "micro_batch_size": batch.micro_batch_size,
        "gradient_accumulation": batch.gradient_accumulation,
        "global_batch_size": batch.samples_per_update,
        "updates_per_epoch": usual_samples(config) // batch.samples_per_update,
    }


def _problem(config: RunConfig) -> str | None:
    try:
        plan_run(config)
    except ConfigError as error:
        return _first_line(error)
    return None


def _first_line(error: ConfigError) -> str:
    return str(error).splitlines()[0]


def _place(row: dict[str, Any]) -> tuple[str, int, str]:
    """Where a row stands in the list: by network, then by size."""
    return row["model"] or "", row["devices"] or 0, row["name"]


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    lines = [_TITLES, *rows]
    wide = {key: max(len(_word(line[key])) for line in lines) for key in ("name", "model")}
    for line in lines:
        word = {key: _word(line[key]) for key in _TITLES}
        yield (
            f"{word['name']:<{wide['name']}}  {word['model']:<{wide['model']}}  "
            f"{word['devices']:>7}  {word['global_batch_size']:>6}  "
            f"{word['updates_per_epoch']:>13}  {word['problem']}".rstrip()
        )


def _word(value: str | int | None) -> str:
    return "" if value is None else str(value)


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one")
    parser.add_argument("--json", action="store_true", help="print as JSON")
