"""Validate, average and export checkpoints."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from convoy.api.keywords import RunOptions
from convoy.api.requests import (
    PathLike,
    UserOptions,
    find_checkpoints,
    load_user_code,
    options_from_keywords,
    register_objects,
    settings_without_dataset,
)
from convoy.api.runs import own_torch_settings
from convoy.config.resolve import (
    ResolvedConfig,
    read_run_settings,
    refuse_unavailable,
    resolve,
    unavailable_values,
)
from convoy.config.schema import (
    Problem,
    RequestedOptions,
    RunConfig,
    Setting,
    Settings,
    raise_problems,
    setting_values,
)
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Averaged
from convoy.run.start import inspect_data

if TYPE_CHECKING:
    from convoy.run.import_export import ExportResult
    from convoy.run.user_code import NetworkSource
    from convoy.run.validation import NetworkScore

_COMPILED = "compiled"


@dataclass(frozen=True)
class ValidationScore:
    """The result of validating one checkpoint; accuracies are fractions."""

    checkpoint: str | None  # None: random weights
    weights_sha256: str
    update: int
    epoch: float
    top1: float
    top5: float
    loss: float
    samples: int
    seconds: float
    images_per_second: float
    latency_ms: float | None = None  # mean per batch, if `latency` is set
    latency_p99_ms: float | None = None
    skipped_records: tuple[str, ...] = ()  # bad records, if `bad_records` is skip

    def to_json(self) -> dict[str, Any]:
        """The fields that have a value, without the skipped records."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        del values["skipped_records"]
        return {"checkpoint": None, **values}


def validate(
    *targets: PathLike,
    model: "str | NetworkSource | None" = None,
    data: Any = None,
    config: str | None = None,
    config_path: PathLike | None = None,
    **options: Unpack[RunOptions],
) -> list[ValidationScore]:
    """Compute top-1, top-5 and loss on the validation split, with every sample exactly once.

    Args:
        *targets: Runs, all of whose checkpoints are validated, or checkpoints. Without a target,
            `random_weights=True` validates a newly initialized network.
        model: Your own network, as for `train`, if the runs have one.
        data: Your own dataset, likewise; or another dataset than that of the run.
        config: Named configuration of a checkpoint without its run.
        config_path: Path of your own configuration file, likewise.
        **options: Options that replace those of the run.
    """
    scores = []
    with own_torch_settings():
        _, names = register_objects(model, data)
        keywords = {**options, **names, "config": config, "config_path": config_path}
        requested = options_from_keywords(keywords)
        for score in validate_targets([Path(target) for target in targets], requested):
            if isinstance(score, CheckpointError):
                raise score
            scores.append(score)
    return scores


def validate_targets(
    targets: Sequence[Path], options: UserOptions
) -> Iterator[ValidationScore | CheckpointError]:
    """Validate checkpoint by checkpoint; every invalid option is refused before the first one."""
    options = _apply_compile_option(options)
    checkpoints = [find_checkpoints(path) for path in targets]
    jobs: list[tuple[RunConfig, Sequence[Path | None]]] = [
        (_resolve_config(_run_request(options, run)), paths) for paths, run in checkpoints
    ]
    if not checkpoints:
        jobs = [(_resolve_config(_fresh_network_request(options)), [None])]
    return (score for config, paths in jobs for score in _scores(config, paths))


def _scores(
    config: RunConfig, paths: Sequence[Path | None]
) -> Iterator[ValidationScore | CheckpointError]:
    from convoy.run.validation import validate_checkpoints

    for score in validate_checkpoints(config, paths, config.validation.repeat):
        if isinstance(score, CheckpointError):
            yield score
        else:
            yield _to_score(score, config.validation.latency)


def _to_score(score: "NetworkScore", with_latency: bool) -> ValidationScore:
    names = {field.name for field in fields(ValidationScore)}
    values = {name: value for name, value in asdict(score.validated).items() if name in names}
    latency = (score.latency.mean, score.latency.p99) if with_latency else (None, None)
    path = None if score.path is None else str(score.path)
    return ValidationScore(
        path,
        score.weights_sha256,
        **values,
        latency_ms=latency[0],
        latency_p99_ms=latency[1],
        skipped_records=score.skipped,
    )


def _apply_compile_option(options: UserOptions) -> UserOptions:
    """Treat --compile as --backend compiled."""
    compile_setting = options.settings.get("compile")
    if compile_setting is None or not compile_setting.value:
        return options
    backend = options.settings.get("backend", Setting(_COMPILED, compile_setting.source))
    if backend.value == _COMPILED:
        return replace(options, settings={**options.settings, "backend": backend})
    problem = Problem("--compile", f"and --backend {backend.value} are mutually exclusive; use one")
    return replace(options, problems=[*options.problems, problem])


def _resolve_config(request: RequestedOptions) -> RunConfig:
    resolved = resolve(request)
    refuse_unavailable(resolved)
    return inspect_data(resolved)[0].config


def _fresh_network_request(options: UserOptions) -> RequestedOptions:
    """Return the request without a run, which requires --random-weights."""
    request = options.to_request()
    if setting_values(request.named_config | request.command_line).get("random_weights"):
        return request
    missing = Problem("", "specify a run or a checkpoint, or use --random-weights")
    return replace(request, problems=[*request.problems, missing])


def _run_request(options: UserOptions, run: Settings) -> RequestedOptions:
    """Return the request for a run or a checkpoint; options replace those of the run."""
    problems = []
    if setting_values(options.settings).get("random_weights"):
        text = "validates a newly initialized network and cannot be combined with a run"
        problems.append(Problem("--random-weights", text))
    return options.to_request(problems, run_settings=run)


_STRATEGY = "weight_avg_strategy"


def average(
    run: PathLike,
    *,
    model: "str | NetworkSource | None" = None,
    data: Any = None,
    **options: Unpack[RunOptions],
) -> Averaged:
    """Average checkpoints of a run: the mean of the newest ones, or an exponential average.

    Args:
        run: The run folder.
        model: Your own network, as for `train`, if the run has one.
        data: Your own dataset, likewise.
        **options: For example `weight_avg_n=5` or `weight_avg_strategy="exponential"`.

    Returns:
        The path of the new checkpoint, and what it is the average of.
    """
    with own_torch_settings():
        _, names = register_objects(model, data)
        return average_run(Path(run), options_from_keywords({**options, **names}))


def average_run(run: Path, options: UserOptions) -> Averaged:
    """Average the checkpoints of a run; the default is their mean."""
    problems = options.problems
    settings = read_run_settings(run / "config.yaml")
    load_user_code(settings | options.settings)
    if setting_values(options.settings).get(_STRATEGY) == "none":
        text = "none computes no average; use mean or exponential, or remove it"
        problems = [*problems, Problem("--weight-avg-strategy", text)]
    if setting_values(settings).get(_STRATEGY, "none") == "none":
        settings[_STRATEGY] = Setting("mean", "convoy average")
    resolved = resolve(RequestedOptions(options.settings, settings, problems))
    refuse_unavailable(resolved)
    from convoy.run.averaging import average_checkpoints

    return average_checkpoints(resolved.config, run / "checkpoints")


ExportFormat = Literal["safetensors", "torch-export", "onnx"]
Naming = Literal["torchvision", "timm", "convoy"]
FORMAT_SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
NAMINGS = ("torchvision", "timm", "convoy")


@dataclass(frozen=True)
class ExportArguments:
    """What to export to; None selects the default."""

    format: str = "safetensors"
    naming: str | None = None  # for safetensors; None: of a library that has the network
    output: str | None = None
    batch_size: int | None = None  # None: any
    overwrite: bool = False  # overwrite an existing file


def export(
    source: PathLike,
    output: PathLike | None = None,
    *,
    model: "str | NetworkSource | None" = None,
    format: ExportFormat = "safetensors",
    naming: Naming | None = None,
    batch_size: int | None = None,
    overwrite: bool = False,
) -> "ExportResult":
    """Export a checkpoint, or the newest valid checkpoint of a run.

    Args:
        source: A run or a checkpoint.
        output: The file to write; by default the name of the model, in the current folder.
        model: Your own network, as for `train`, if the run has one.
        format: Weights as safetensors, a torch.export program, or ONNX.
        naming: Names of the weights in safetensors. The default is that of torchvision or timm if
            the library has this network, else convoy's.
        batch_size: Batch size of the exported program; None makes it dynamic.
        overwrite: Overwrite an existing file.
    """
    for name, value, choices in (
        ("format", format, [*FORMAT_SUFFIXES]),
        ("naming", naming, [None, *NAMINGS]),
    ):
        if value not in choices:
            raise ConfigError(
                f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}"
            )
    path = None if output is None else str(Path(output))
    arguments = ExportArguments(format, naming, path, batch_size, overwrite)
    with own_torch_settings():
        _, names = register_objects(model, None)
        return export_checkpoint(Path(source), options_from_keywords(names), arguments)


def export_checkpoint(
    source: Path, options: UserOptions, arguments: ExportArguments
) -> "ExportResult":
    """Export a checkpoint; the written file is read back and compared."""
    run = settings_without_dataset(source)
    resolved = resolve_without_data(options.to_request(run_settings=run))
    form, suffix = arguments.format, FORMAT_SUFFIXES[arguments.format]
    output = arguments.output or resolved.config.network.model + suffix
    raise_problems(_export_problems(arguments, output))
    from convoy.run.import_export import ExportRequest
    from convoy.run.import_export import export as write_export

    request = ExportRequest(
        form, arguments.naming, Path(output), arguments.batch_size, arguments.overwrite
    )
    return write_export(resolved.config, source, request)


def resolve_without_data(request: RequestedOptions) -> ResolvedConfig:
    """Resolve options for a verb that reads no data."""
    resolved = resolve(request)
    raise_problems(unavailable_values(resolved.settings))
    return resolved


def _export_problems(arguments: ExportArguments, output: str) -> Iterator[Problem]:
    form, suffix = arguments.format, FORMAT_SUFFIXES[arguments.format]
    if not output.endswith(suffix):
        yield Problem("--output", f"{output} must end in {suffix} for --format {form}")
    if arguments.naming and form != "safetensors":
        yield Problem("--naming", f"applies to --format safetensors only; {form} contains no names")
    if arguments.batch_size is not None and form == "safetensors":
        yield Problem(
            "--batch-size", "does not apply to --format safetensors, which contains only weights"
        )
