"""convoy plan"""

import shutil
from dataclasses import asdict
from pathlib import Path

from convoy.cli.args import add_config_arguments, make_parser, parse_run_command
from convoy.cli.output import print_json, print_result
from convoy.config.resolve import ResolvedConfig, inactive_options, resolve, unavailable_values
from convoy.config.schema import RunConfig
from convoy.errors import ExitCode
from convoy.models.network import plan_training_network
from convoy.plan.plan import RunPlan, plan_run
from convoy.plan.render import (
    inactive_as_text,
    phases_as_text,
    plan_as_json,
    sources_as_text,
    unavailable_as_text,
)
from convoy.plan.stages import lists_splits, split_points, splits_as_text
from convoy.run.start import inspect_data

DESCRIPTION = "Show a run without training: batches, stages, schedule, memory, learning rates."


def main(words: list[str]) -> int:
    """Print the plan; fast, because nothing here imports torch."""
    parser = make_parser("plan", DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--explain", action="store_true", help="show the source of each value")
    add_config_arguments(parser)
    line = parse_run_command(parser, words)
    resolved = resolve(line.to_request())
    if lists_splits(resolved.config):
        show_splits(resolved.config, as_json=line.args.json)
    elif line.args.json:
        resolved, plan = _plan_with_data(resolved)
        print_json(plan_as_json(plan, resolved.settings))
    else:
        show_plan(resolved, explain=line.args.explain)
    return ExitCode.DONE


def _plan_with_data(resolved: ResolvedConfig) -> tuple[ResolvedConfig, RunPlan]:
    """Plan with the data files if they exist; a plan does not need them."""
    folder, samples = resolved.config.data.data_dir, None
    if folder is not None and Path(folder).is_dir():
        resolved, samples = inspect_data(resolved)
    return resolved, plan_run(resolved.config, samples)


def show_plan(resolved: ResolvedConfig, explain: bool) -> None:
    """Print the plan as text; with `explain`, also each value and its source."""
    width = shutil.get_terminal_size((100, 24)).columns
    resolved, plan = _plan_with_data(resolved)
    inactive = inactive_as_text(inactive_options(resolved.config, resolved.settings))
    unavailable_lines = unavailable_as_text(unavailable_values(resolved.settings))
    print("\n".join([*phases_as_text(plan, width), *inactive, *unavailable_lines]))
    if explain:
        print("\n".join(["", *sources_as_text(resolved.settings)]))


def show_splits(config: RunConfig, as_json: bool) -> None:
    """Print where a stage can start (`--pipeline-splits list`), instead of a plan or a run."""
    points = split_points(plan_training_network(config), config.batch.micro_batch_size)
    print_result(as_json, [asdict(point) for point in points], splits_as_text(points))
