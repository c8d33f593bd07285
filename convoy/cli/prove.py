"""convoy prove"""

import shutil
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convoy.cli.args import (
    MODEL_AND_DATA,
    OPTIMIZER_OPTIONS,
    ParsedCommand,
    add_config_arguments,
    make_parser,
    parse_run_command,
    too_small_problems,
)
from convoy.cli.output import print_exception, print_lines, print_result
from convoy.config.command_line import RunHelp
from convoy.config.resolve import ResolvedConfig, refuse_unavailable, resolve
from convoy.config.schema import (
    RequestedOptions,
    option_table,
    raise_problems,
    setting_values,
    settings_from,
)
from convoy.config.sections.data import DATA
from convoy.errors import ConfigError, ConvoyError, ExitCode
from convoy.planning.plan import plan_run
from convoy.planning.topology import Layout, all_layouts, resume_pairs
from convoy.report.proof import TABLE_HEADER, Proof, as_json, format_row, summary_line
from convoy.report.summary import Summary
from convoy.run.folder import RunRequest
from convoy.run.start import run_in_workers
from convoy.text import pluralize

DESCRIPTION = """\
Train the same model with different numbers of stages, replicas and loader workers,
schedules, and recompute, offload and sharding options, resume checkpoints with other numbers, and
check that the weights are bit-identical. This command sets these options; all others can be set."""

_DEFAULTS = {
    "model": "resnet20",
    "image_size": 16,
    "micro_batch_size": 4,
    "gradient_accumulation": 24,
    "updates": 20,
    "samples": 4 * 24 * 10,
    "lr": 0.02,
    "threads": 1,
}
_QUICK_DEFAULTS = _DEFAULTS | {
    "model": "resnet8",
    "image_size": 12,
    "gradient_accumulation": 8,
    "updates": 4,
    "samples": 4 * 8 * 2,
}
_RUN_HELP = RunHelp(  # without the layout, which this command sets, and without outputs
    {
        **MODEL_AND_DATA,
        "training length and batch size": (
            "updates",
            "micro_batch_size",
            "gradient_accumulation",
            "seed",
        ),
        **OPTIMIZER_OPTIONS,
        "devices": ("device", "precision"),
    },
    defaults=_DEFAULTS,
)
_REFUSED_OPTIONS = ("checkpoint_output_path", "name", "name_suffix", "log_dir", "stop_after")
# Each run is short and silent; only its last checkpoint is compared.
_QUIET_VALUES: dict[str, Any] = {
    "progress": "none",
    "validation_mode": "none",
    "logs_per_epoch": 0,
    "ckpts_per_epoch": 1,
    "weight_avg_strategy": "none",
}


def main(argv: list[str]) -> int:
    """Train in one layout after the other, in real processes."""
    parser = make_parser("prove", DESCRIPTION)
    add, processes_help = parser.add_argument, "maximum number of processes at a time [8]"
    add("--quick", action="store_true", help="fewer updates; takes less than a minute")
    add("--json", action="store_true", help="print the result as JSON")
    add("--max-processes", type=int, default=8, metavar="N", help=processes_help)
    add("--most-processes", dest="max_processes", type=int, help=SUPPRESS)  # the former spelling
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, _RUN_HELP)
    args, resolved = line.args, _resolve(line)
    proofs: list[Proof] = []
    try:
        with TemporaryDirectory(prefix="convoy-prove-") as folder:
            for proof in _prove(resolved, Path(folder), args.max_processes, args.quick):
                header = [] if proofs else [TABLE_HEADER]
                print_lines([] if args.json else [*header, format_row(proof)])
                proofs.append(proof)
    except _RunStopped as stopped:
        text = f"stopped after {pluralize(len(proofs), 'run')}; the result is incomplete"
        print_exception(ConvoyError(text))
        return int(stopped.args[0])
    print_result(args.json, as_json(proofs), [summary_line(proofs)])
    return ExitCode.DONE if all(proof.is_as_expected for proof in proofs) else ExitCode.NUMERIC


def _resolve(line: ParsedCommand) -> ResolvedConfig:
    """Resolve the options; refuse those that cannot be proved."""
    raise_problems(too_small_problems(line.args, "max_processes"))
    refused = [
        option_table()[name].shown_flag for name in _REFUSED_OPTIONS if name in line.settings
    ]
    if refused:
        raise ConfigError(
            f"{' and '.join(refused)} cannot be set: `convoy prove` trains complete runs in "
            "temporary folders"
        )
    request = line.to_request()
    defaults = settings_from("convoy prove", _default_values(request, line.args.quick))
    resolved = resolve(replace(request, dialect_defaults=defaults))
    refuse_unavailable(resolved)
    if resolved.config.fine_tune.half_res_training:
        raise ConfigError("--half-res-training cannot be set: `convoy prove` trains in one phase")
    return resolved


def _default_values(request: RequestedOptions, quick: bool) -> Mapping[str, Any]:
    """Return the defaults; the files of a dataset determine the number and size of its images."""
    defaults = _QUICK_DEFAULTS if quick else _DEFAULTS
    data = setting_values(request.named_config | request.command_line).get("data", "shapes")
    fixed = ("samples", "image_size") if data in DATA and DATA[data].on_disk else ()
    return {name: value for name, value in defaults.items() if name not in fixed}


def _prove(
    resolved: ResolvedConfig, folder: Path, max_processes: int, quick: bool
) -> Iterator[Proof]:
    batch = resolved.config.batch
    micro_batches = batch.gradient_accumulation * batch.replicas
    layers = len(plan_run(resolved.config).network.layers)
    layouts = all_layouts(micro_batches, layers, max_processes)
    if resolved.config.replica.bn_span > 1:  # then the replicas affect the weights
        layouts = [layout for layout in layouts if layout.replicas == batch.replicas]
    prover = LayoutProver(resolved, micro_batches, folder)
    for layout in layouts:
        yield prover.train(layout)
    pairs = resume_pairs(layouts) if prover.updates > 1 else []  # a run of 1 update has no middle
    for first, second in pairs[: 3 if quick else None]:
        yield prover.resume_under(first, second)


class _RunStopped(Exception):
    """A run was stopped before its end; the argument is the exit code."""


class LayoutProver:
    """Trains in one layout after the other, and compares each with the first."""

    def __init__(self, resolved: ResolvedConfig, micro_batches: int, folder: Path) -> None:
        self.resolved = resolved
        self.micro_batches = micro_batches
        self.folder = folder
        self.updates = plan_run(resolved.config).loop.updates
        self._reference_run: tuple[Summary, Path] | None = None
        self._half_trained_runs: dict[Layout, Path] = {}
        self._num_runs = 0

    def train(self, layout: Layout) -> Proof:
        run = self._new_folder()
        self._run(layout, run)
        return self._proof(layout, run)

    def resume_under(self, first: Layout, second: Layout) -> Proof:
        """Train the first half in one layout, and resume it in another."""
        run = self._new_folder()
        shutil.copytree(self._half_trained_run(first), run)
        self._run(second, run)
        return replace(self._proof(second, run), resumed_from=first)

    def _half_trained_run(self, layout: Layout) -> Path:
        if layout not in self._half_trained_runs:
            self._half_trained_runs[layout] = self._new_folder()
            self._run(layout, self._half_trained_runs[layout], stop_after=self.updates // 2)
        return self._half_trained_runs[layout]

    def _run(self, layout: Layout, run: Path, stop_after: int | None = None) -> None:
        """Start a run in a new folder, or resume the existing one."""
        resumed = run if run.exists() else None
        values = _QUIET_VALUES | layout.option_values(self.micro_batches)
        values["stop_after"] = stop_after
        if resumed is None:
            values["checkpoint_output_path"] = str(run)
        resolved = self.resolved.with_values(values, "convoy prove")
        request = RunRequest(resolved, resumed, quiet=True)
        outcome = run_in_workers(request, plan_run(resolved.config))
        summary = run / "summary.json"  # missing if the run did not start
        reason = Summary.read(summary).exit_reason if summary.exists() else None
        if reason != ("done" if stop_after is None else "limit"):
            raise _RunStopped(outcome.code)  # by a signal, so its weights prove nothing

    def _proof(self, layout: Layout, run: Path) -> Proof:
        summary = Summary.read(run / "summary.json")
        if self._reference_run is None:
            self._reference_run = summary, run
        reference, reference_folder = self._reference_run
        equal = summary.weights_sha256 == reference.weights_sha256
        difference = 0.0
        if not equal:
            from convoy.checkpoint.store import max_weight_difference

            difference = max_weight_difference(reference_folder, run)
        return Proof(layout, summary, equal, difference)

    def _new_folder(self) -> Path:
        self._num_runs += 1
        return self.folder / str(self._num_runs)
