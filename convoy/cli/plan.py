"""convoy plan"""

import shutil
from dataclasses import asdict

from convoy.api.plans import Plan
from convoy.cli.args import PLAN_HELP, add_config_arguments, make_parser, parse_run_command
from convoy.cli.output import print_json, print_result
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import RunConfig
from convoy.errors import ExitCode
from convoy.models.network import plan_training_network
from convoy.planning.stages import lists_splits, split_points, splits_as_text

DESCRIPTION = """\
Show what a run would do, without training: batch, stages, schedule, memory and learning
rate."""


def main(argv: list[str]) -> int:
    """Print the plan; fast, because nothing here imports torch."""
    parser = make_parser("plan", DESCRIPTION, "convoy plan [DIR] [options]")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--explain", action="store_true", help="show where each option value comes from"
    )
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, PLAN_HELP, takes_folder=True)
    resolved = resolve(line.to_request())
    if lists_splits(resolved.config):
        show_splits(resolved.config, as_json=line.args.json)
    elif line.args.json:
        print_json(Plan(resolved).values)
    else:
        show_plan(resolved, explain=line.args.explain)
    return ExitCode.DONE


def show_plan(resolved: ResolvedConfig, explain: bool) -> None:
    """Print the plan as text; with `explain`, also each value and its source."""
    width = shutil.get_terminal_size((100, 24)).columns
    print("\n".join(Plan(resolved).lines(width, explain)))


def show_splits(config: RunConfig, as_json: bool) -> None:
    """Print where a stage can start (`--pipeline-splits list`), instead of a plan or a run."""
    points = split_points(plan_training_network(config), config.batch.micro_batch_size)
    print_result(as_json, [asdict(point) for point in points], splits_as_text(points))
