"""convoy configs"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from convoy.cli.args import make_parser, parse_command
from convoy.cli.output import print_result
from convoy.config.named_configs import read_named_config, shipped_config_names
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import RequestedOptions, RunConfig, settings_as_yaml
from convoy.errors import ConfigError, ExitCode
from convoy.planning.plan import default_num_samples, plan_batch, plan_run

DESCRIPTION = "List the named configurations, or show all option values of one."

# The columns of a row, except for its name and its problem.
_COLUMNS = (
    *("model", "data", "devices", "replicas", "stages", "micro_batch_size"),
    *("gradient_accumulation", "global_batch_size", "updates_per_epoch"),
)
_COLUMN_TITLES = {
    "name": "name",
    "model": "model",
    "devices": "devices",
    "global_batch_size": "batch",
    "updates_per_epoch": "updates/epoch",
    "problem": "problem",
}


def main(argv: list[str]) -> int:
    parser = make_parser("configs", DESCRIPTION)
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a configuration")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parse_command(parser, argv)
    if args.name is not None:
        settings = _resolve_named(args.name).settings
        options = {name: asdict(setting) for name, setting in settings.items()}
        print_result(args.json, options, settings_as_yaml(settings).splitlines())
    else:
        rows = config_rows()
        print_result(args.json, rows, _format_table(rows))
    return ExitCode.DONE


def config_rows() -> list[dict[str, Any]]:
    """Return all configurations, sorted by model, devices and name."""
    rows = map(_row, shipped_config_names())
    return sorted(rows, key=lambda row: (row["model"] or "", row["devices"] or 0, row["name"]))


def _resolve_named(name: str) -> ResolvedConfig:
    named, problems = read_named_config(name, None)
    return resolve(RequestedOptions(named_config=named, problems=problems, environment={}))


def _row(name: str) -> dict[str, Any]:
    """Return the values of a row, or its problem; the values are None if it cannot be resolved."""
    row = {"name": name, **dict.fromkeys(_COLUMNS), "problem": None}
    try:
        config = _resolve_named(name).config
        row |= _column_values(config)
        plan_run(config)
    except ConfigError as error:
        row["problem"] = str(error).splitlines()[0]
    return row


def _column_values(config: RunConfig) -> dict[str, Any]:
    """Compute the values that are known even if the plan is refused."""
    batch, stages = plan_batch(config), config.pipeline.planned_stages
    devices_per_replica = -(-stages // config.pipeline.stages_per_device)
    return {
        "model": config.network.model,
        "data": config.data.data,
        "devices": devices_per_replica * batch.replicas,
        "replicas": batch.replicas,
        "stages": stages,
        "micro_batch_size": batch.micro_batch_size,
        "gradient_accumulation": batch.gradient_accumulation,
        "global_batch_size": batch.samples_per_update,
        "updates_per_epoch": default_num_samples(config) // batch.samples_per_update,
    }


def _format_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [
        {key: "" if row[key] is None else str(row[key]) for key in _COLUMN_TITLES}
        for row in (_COLUMN_TITLES, *rows)
    ]
    width = {key: max(len(cell[key]) for cell in cells) for key in ("name", "model")}
    for cell in cells:
        yield (
            f"{cell['name']:<{width['name']}}  {cell['model']:<{width['model']}}  "
            f"{cell['devices']:>7}  {cell['global_batch_size']:>6}  "
            f"{cell['updates_per_epoch']:>13}  {cell['problem']}".rstrip()
        )
