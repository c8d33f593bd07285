"""convoy prove"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convoy.cli.args import add_config, read_line, too_small
from convoy.cli.output import say, say_error
from convoy.config.catalog import DATA
from convoy.config.command_line import Parser
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import option_table
from convoy.config.settings import from_source, layer, refuse, values_of
from convoy.config.support import refuse_unready
from convoy.errors import ConfigError, ConvoyError, ExitCode
from convoy.plan.plan import plan_run
from convoy.plan.topology import Layout, all_layouts, crossings
from convoy.report.proof import HEAD, Proof, as_json, closing, row
from convoy.report.summary import Summary
from convoy.run.folder import RunRequest
from convoy.run.start import run_in_workers

SAYS = """Train the same under many layouts: stages, replicas, schedules, recomputation, offload,
sharding, loader workers; then save under one layout and resume under another. Shows whether
the weights are the same to the bit. Prove sets the layout; every other option is yours."""

_SMALL = {
    "model": "resnet20",
    "image_size": 16,
    "micro_batch_size": 4,
    "gradient_accumulation": 24,
    "updates": 20,
    "samples": 4 * 24 * 10,
    "lr": 0.02,
    "threads": 1,
}
_QUICK = _SMALL | {
    "model": "resnet8",
    "image_size": 12,
    "gradient_accumulation": 8,
    "updates": 4,
    "samples": 4 * 8 * 2,
}
_OWN = ("checkpoint_output_path", "name", "name_suffix", "log_dir", "stop_after")
# Each run is short and nobody watches it; its last checkpoint is compared.
_UNSEEN = {
    "progress": "none",
    "validation_mode": "none",
    "logs_per_epoch": 0,
    "ckpts_per_epoch": 1,
    "weight_avg_strategy": "none",
}


def main(words: list[str]) -> int:
    """Real runs in real processes, one layout after the other."""
    line = read_line("prove", words, SAYS, _add_own)
    refuse(too_small(line.own, "most_processes"))
    in_vain = [option_table()[name].flag for name in _OWN if name in line.given]
    if in_vain:
        raise ConfigError(
            f"{' and '.join(in_vain)} cannot be given: prove trains in folders of its own, "
            "from the start to the end, and removes them"
        )
    asked = line.asked()
    usual = from_source("convoy prove", _usual(asked, line.own.quick))
    resolved = resolve(replace(asked, dialect=usual))
    refuse_unready(resolved)
    if resolved.config.fine_tune.half_res_training:
        raise ConfigError("--half-res-training cannot be given: prove trains in one phase")
    plan_run(resolved.config)
    proofs: list[Proof] = []
    try:
        with TemporaryDirectory(prefix="convoy-prove-") as folder:
            for proof in _prove(resolved, Path(folder), line.own.most_processes, line.own.quick):
                proofs.append(proof)
                if not line.own.json:
                    say([HEAD, row(proof)] if len(proofs) == 1 else [row(proof)])
    except _Stopped as stopped:
        say_error(ConvoyError(f"stopped after {len(proofs)} layouts: nothing is proved"))
        return stopped.code
    print(json.dumps(as_json(proofs), indent=1) if line.own.json else closing(proofs))
    return ExitCode.DONE if all(one.holds for one in proofs) else ExitCode.NUMERIC


def _add_own(parser: Parser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer updates, less than a minute")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--most-processes", type=int, default=8, metavar="N", help="processes at a time [8]"
    )
    add_config(parser)


def _usual(asked: RequestedOptions, quick: bool) -> Mapping[str, Any]:
    """What nobody has to say. Images that lie in files have their own number and size."""
    usual = _QUICK if quick else _SMALL
    data = values_of(layer(asked.named, asked.command_line)).get("data", "shapes")
    if data not in DATA or not DATA[data].on_disk:
        return usual
    return {name: one for name, one in usual.items() if name not in ("samples", "image_size")}


def _prove(resolved: Resolved, folder: Path, most: int, quick: bool) -> Iterator[Proof]:
    batch = resolved.config.batch
    micro_batches = batch.gradient_accumulation * batch.replicas
    layers = len(plan_run(resolved.config).network.layers)
    layouts = all_layouts(micro_batches, layers, most)
    if resolved.config.replica.bn_span > 1:  # another number of replicas is another training
        layouts = [one for one in layouts if one.replicas == batch.replicas]
    bench = Bench(resolved, micro_batches, folder)
    for layout in layouts:
        yield bench.train(layout)
    pairs = crossings(layouts) if bench.updates > 1 else []  # there is a middle to stop at
    for before, after in pairs[: 3 if quick else None]:
        yield bench.cross(before, after)


class _Stopped(Exception):
    """A run was asked to stop before its end."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Bench:
    """Trains under one layout after the other, and compares with the first."""

    def __init__(self, resolved: Resolved, micro_batches: int, folder: Path) -> None:
        self.resolved = resolved
        self.micro_batches = micro_batches
        self.folder = folder
        self.updates = plan_run(resolved.config).loop.updates
        self._first: tuple[Summary, Path] | None = None
        self._halves: dict[Layout, Path] = {}
        self._runs = 0

    def train(self, layout: Layout) -> Proof:
        run = self._new_folder()
        self._run(layout, run)
        return self._proof(layout, run)

    def cross(self, before: Layout, after: Layout) -> Proof:
        """Half of it under one layout, the rest under another."""
        run = self._new_folder()
        shutil.copytree(self._half(before), run)
        self._run(after, run)
        return replace(self._proof(after, run), before=before)

    def _half(self, layout: Layout) -> Path:
        if layout not in self._halves:
            self._halves[layout] = self._new_folder()
            self._run(layout, self._halves[layout], stop_after=self.updates // 2)
        return self._halves[layout]

    def _run(self, layout: Layout, run: Path, stop_after: int | None = None) -> None:
        """Begin a run in a new folder, or resume the one that is there."""
        resumed = run if run.exists() else None
        values = {**_UNSEEN, **layout.values(self.micro_batches), "stop_after": stop_after}
        if resumed is None:
            values["checkpoint_output_path"] = str(run)
        resolved = self.resolved.changed(values, "convoy prove")
        code = run_in_workers(RunRequest(resolved, resumed, quiet=True), plan_run(resolved.config))
        summary = run / "summary.json"  # not there if the run did not even begin
        reason = Summary.read(summary).exit_reason if summary.exists() else None
        if reason != ("done" if stop_after is None else "limit"):
            raise _Stopped(code)  # by a signal: what came of it is no evidence

    def _proof(self, layout: Layout, run: Path) -> Proof:
        summary = Summary.read(run / "summary.json")
        if self._first is None:
            self._first = summary, run
        first, home = self._first
        equal = summary.weights_sha256 == first.weights_sha256
        difference = 0.0
        if not equal:
            from convoy.checkpoint.store import largest_difference

            difference = largest_difference(home, run)
        return Proof(layout, summary, equal, difference)

    def _new_folder(self) -> Path:
        self._runs += 1
        return self.folder / str(self._runs)
