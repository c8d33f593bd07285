"""convoy train, convoy resume"""

from pathlib import Path

from convoy.api.requests import load_user_code
from convoy.cli.args import add_config_arguments, make_parser, parse_run_command
from convoy.config.command_line import RunHelp
from convoy.config.resolve import read_run_settings, resolve, resolve_resumed
from convoy.errors import ExitCode

DESCRIPTION = "Train a network; without options, ResNet-14 on the built-in dataset `shapes`."
EXAMPLES = """examples:
  convoy train --model resnet20 --epochs 3 --lr 0.05 --output runs/mine
  convoy train photos --pretrained
  convoy train --model resnet20 --shards 2 --replicas 2 --gradient-accumulation 8
"""
RESUME_DESCRIPTION = """\
Resume a run from its newest valid checkpoint, bit-exactly. Options that affect the weights
cannot be changed without --override."""
_RESUME_HELP = RunHelp(
    {
        "data": ("data_dir", "dataloader_worker"),
        "devices": (
            *("device", "replicas", "gradient_accumulation"),
            *("shards", "pipeline_schedule", "enable_recompute"),
        ),
        "checkpoints and reports": (
            *("stop_after", "ckpts_per_epoch", "keep_last", "validation_mode"),
            *("logs_per_epoch", "progress"),
        ),
    },
    default_source="the run",
)


def main(argv: list[str]) -> int:
    """Start a run; every invalid option is refused before torch is imported."""
    parser = make_parser("train", DESCRIPTION, "convoy train [DIR] [options]")
    parser.epilog = EXAMPLES
    dry_run_help = "print the plan and where each option value comes from, and exit"
    parser.add_argument("--dry-run", action="store_true", help=dry_run_help)
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, takes_folder=True)
    # Imported after the help is printed, because these are slow to import.
    from convoy.cli.plan import show_plan, show_splits
    from convoy.planning.stages import lists_splits
    from convoy.run.folder import RunRequest
    from convoy.run.start import start

    resolved = resolve(line.to_request())
    if lists_splits(resolved.config):
        show_splits(resolved.config, as_json=False)
        return ExitCode.DONE
    if line.args.dry_run:
        show_plan(resolved, explain=True)
        return ExitCode.DONE
    return start(RunRequest(resolved)).code


def run_resume(argv: list[str]) -> int:
    """Resume a run; a complete run stays unchanged."""
    parser = make_parser("resume", RESUME_DESCRIPTION, "convoy resume RUN [options]")
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of the run")
    add("--checkpoint", metavar="DIR", help="resume from this checkpoint")
    add("--override", action="store_true", help="allow options that change the training results")
    line = parse_run_command(parser, argv, _RESUME_HELP)
    from convoy.run.folder import RunRequest
    from convoy.run.start import start

    run = Path(line.args.run)
    run_settings = read_run_settings(run / "config.yaml")
    load_user_code(run_settings | line.settings)
    resolved = resolve_resumed(run_settings, line.settings, line.problems, line.args.override)
    checkpoint = Path(line.args.checkpoint) if line.args.checkpoint else None
    return start(RunRequest(resolved, run, checkpoint, line.args.override)).code
