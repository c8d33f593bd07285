"""convoy plan"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from convoy.cli.args import add_config, read_line
from convoy.cli.output import show
from convoy.config.command_line import Parser
from convoy.config.resolve import Resolved, resolve
from convoy.config.schema import RunConfig
from convoy.config.support import inactive_options, unavailable
from convoy.errors import ExitCode
from convoy.models.network import plan_training_network
from convoy.plan.plan import RunPlan, plan_run
from convoy.plan.printed import (
    effectless_as_text,
    phases_as_text,
    plan_as_json,
    sources_as_text,
    unavailable_as_text,
)
from convoy.plan.stages import asks_for_list, split_points, splits_as_text
from convoy.run.start import inspect_data

SAYS = "What a run would be, without running it: batches, stages, schedule, memory, rates."


def main(words: list[str]) -> int:
    """Answers at once: nothing of it needs torch."""
    line = read_line("plan", words, SAYS, _add_own)
    resolved = resolve(line.asked())
    if asks_for_list(resolved.config):
        show_splits(resolved.config, as_json=line.own.json)
    elif line.own.json:
        resolved, plan = _planned(resolved)
        print(json.dumps(plan_as_json(plan, resolved.settings), indent=1))
    else:
        show_plan(resolved, explain=line.own.explain)
    return ExitCode.DONE


def _planned(resolved: Resolved) -> tuple[Resolved, RunPlan]:
    """With what the files say, where they are there: a plan needs none."""
    folder, samples = resolved.config.data.data_dir, None
    if folder is not None and Path(folder).is_dir():
        resolved, samples = inspect_data(resolved)
    return resolved, plan_run(resolved.config, samples)


def show_plan(resolved: Resolved, explain: bool) -> None:
    """The plan for people; on request with every value and who set it."""
    width = shutil.get_terminal_size((100, 24)).columns
    resolved, plan = _planned(resolved)
    in_vain = effectless_as_text(inactive_options(resolved.config, resolved.settings))
    not_yet = unavailable_as_text(unavailable(resolved.settings))
    print("\n".join([*phases_as_text(plan, width), *in_vain, *not_yet]))
    if explain:
        print("\n".join(["", *sources_as_text(resolved.settings)]))


def show_splits(config: RunConfig, as_json: bool) -> None:
    """`--pipeline-splits list`: where a stage may begin, instead of a plan or a run."""
    points = split_points(plan_training_network(config), config.batch.micro_batch_size)
    show(as_json, [asdict(point) for point in points], splits_as_text(points))


def _add_own(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--explain", action="store_true", help="say who set each value")
    add_config(parser)
