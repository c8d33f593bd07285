"""convoy configs"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from convoy.cli.args import read_plain
from convoy.cli.output import show
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
    own = read_plain("configs", words, SAYS, _add_own)
    if own.name is not None:
        settings = _resolved(own.name).settings
        options = {name: asdict(setting) for name, setting in settings.items()}
        show(own.json, options, settings_as_yaml(settings).rstrip("\n").split("\n"))
    else:
        rows = all_rows()
        show(own.json, rows, _table(rows))
    return ExitCode.DONE


def all_rows() -> list[dict[str, Any]]:
    """Every configuration, by model, devices and name."""
    rows = map(_row, shipped_names())
    return sorted(rows, key=lambda row: (row["model"] or "", row["devices"] or 0, row["name"]))


def _resolved(name: str) -> Resolved:
    named, problems = read_named(name, None)
    return resolve(RequestedOptions(named=named, problems=problems, environment={}))


def _row(name: str) -> dict[str, Any]:
    """Its figures, and what speaks against it. One that cannot be resolved has no figures."""
    row = {"name": name, **dict.fromkeys(_FIGURES), "problem": None}
    try:
        config = _resolved(name).config
        row |= _figures(config)
        plan_run(config)
    except ConfigError as error:
        row["problem"] = str(error).splitlines()[0]
    return row


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


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    words = [
        {key: "" if row[key] is None else str(row[key]) for key in _TITLES}
        for row in (_TITLES, *rows)
    ]
    wide = {key: max(len(word[key]) for word in words) for key in ("name", "model")}
    for word in words:
        yield (
            f"{word['name']:<{wide['name']}}  {word['model']:<{wide['model']}}  "
            f"{word['devices']:>7}  {word['global_batch_size']:>6}  "
            f"{word['updates_per_epoch']:>13}  {word['problem']}".rstrip()
        )


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one")
    parser.add_argument("--json", action="store_true", help="print as JSON")
