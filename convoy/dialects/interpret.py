"""Interpret a command of another application: the convoy verb, its target and its options, each
with its source.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from convoy.config.command_line import (
    ConfigArgumentParser,
    ParsedFlags,
    add_flags,
    expand_prefixes,
    parse_flags,
    unknown_argument_problems,
)
from convoy.config.flags import DATA_BENCH_NOTE, Dialect, MappedWord
from convoy.config.named_configs import (
    INFERENCE,
    DialectFile,
    application_defaults,
    entry_keys,
    entry_names,
    has_entry,
    read_dialect_file,
    read_named_config,
    shipped_configs,
)
from convoy.config.resolve import ResolvedConfig
from convoy.config.schema import (
    DroppedWord,
    Problem,
    RequestedOptions,
    Setting,
    Settings,
    build_config,
    exclusive_pairs,
    merge_sources,
    option_table,
    reads_no_files,
    setting_values,
)
from convoy.dialects import DIALECTS, find_in_other_dialects
from convoy.dialects.command import (
    Command,
    Program,
    Purpose,
    identify_program,
    key_to_flag,
    values_after,
    vocabularies,
)
from convoy.dialects.launch_request import LaunchRequest, read_environment
from convoy.dialects.launchers import read_launchers
from convoy.dialects.popart import popart_benchmark
from convoy.dialects.pytorch import pytorch_benchmark
from convoy.dialects.tensorflow import tensorflow_validation
from convoy.errors import ConfigError
from convoy.registry import near_names

DATA_BENCH = "data bench"
_VERBS = {
    Purpose.TRAIN: "train",
    Purpose.RESUME: "resume",
    Purpose.VALIDATE: "validate",
    Purpose.AVERAGE: "average",
    Purpose.INFER: "validate",
    Purpose.SYNTHETIC_BENCHMARK: "train",
    Purpose.DATA_BENCHMARK: DATA_BENCH,
}
_CONFIG_FILE = "configs.yml"  # beside the program, in both applications that use one


@dataclass(frozen=True)
class Interpretation:
    """The meaning of a command, before its options are resolved."""

    program: Program
    verb: str
    request: RequestedOptions
    config: str | None = None  # the shipped configuration that it names
    target: str | None = None  # the run or checkpoint that the verb works on
    help: str = ""  # of the program, if requested
    mapped: list[MappedWord] = field(default_factory=list)
    dropped: list[DroppedWord] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for the run


def interpret(
    command: Command,
    environment: Mapping[str, str],
    dialect: str | None = None,
    overrides: Settings | None = None,
    problems: Sequence[Problem] = (),
) -> Interpretation:
    """Interpret a command; canonical `overrides` win, and their `problems` are reported too."""
    launch = read_launch(command, environment)
    program = identify_program(command, vocabularies(), dialect or _detect_file_dialect(command))
    if program.purpose not in _VERBS:
        raise ConfigError(f"{program.name} ({program.purpose}) is not available in this version")
    launch = _drop_unread_tf_config(launch, program)
    table = _select_dialect(program)
    args, unknown, help_text = _parse(program, table)
    (named, invalid, unread), config = _find_config(args.config, args.config_path, command, program)
    variables = {**environment, **launch.environment}
    folder = variables.get("DATA_DIR")  # its name may identify the dataset
    inherited = {"data_dir": Setting(folder, "environment DATA_DIR")} if folder else {}
    fixed = _launcher_settings(launch)
    parsed = parse_flags(args.flag_occurrences, table, inherited | named, fixed)
    verb = _select_verb(program, parsed)
    settings = _apply_overrides(_adapt_to_verb(parsed, named, verb), overrides or {})
    chosen = named | settings
    wrong = [*launch.problems, *problems, *unknown, *parsed.problems, *invalid]
    wrong += [*_device_count_problems(launch, chosen), *_missing_target_problems(program, parsed)]
    mapped, replaced = _final_mappings(parsed, settings)
    dropped = [*launch.dropped, *_unused_launch_settings(launch), *unread, *parsed.dropped]
    defaults = table.default_settings(setting_values(chosen))
    return Interpretation(
        program,
        verb,
        RequestedOptions(settings, named, wrong, variables, defaults),
        config,
        parsed.target,
        help_text,
        mapped,
        [*dropped, *replaced, *_unused_target_words(program, parsed)],
        launch.environment,
    )


def read_launch(command: Command, environment: Mapping[str, str]) -> LaunchRequest:
    """Read everything before the program: launchers, variables, interpreter flags."""
    request = read_launchers(command.launchers)
    exported = {
        name: text for name, text in environment.items() if _sets_process_count(name, command)
    }
    # A variable that the launcher sets is closer to the program, so it wins.
    variables = {**exported, **command.environment, **request.environment}
    request.environment = {}
    request.merge(read_environment(variables))
    for flag in command.interpreter[1:]:
        request.add_dropped([flag], "the program runs in convoy's own interpreter")
    return request


def _sets_process_count(name: str, command: Command) -> bool:
    """Whether a variable sets the number of processes; a shell may inherit it from a launcher."""
    if name == "TF_CONFIG":
        return "--distributed" in command.words
    return name.startswith("POPDIST_NUM_")


def _drop_unread_tf_config(launch: LaunchRequest, program: Program) -> LaunchRequest:
    """Drop TF_CONFIG unless TensorFlow's `--distributed` reads it."""
    remaining = {
        name: setting
        for name, setting in launch.settings.items()
        if setting.source != "environment TF_CONFIG"
    }
    is_read = program.dialect == "tensorflow" and "--distributed" in program.words
    if is_read or remaining == launch.settings:
        return launch
    dropped = DroppedWord("TF_CONFIG", "only --distributed of the TensorFlow program reads it")
    return replace(launch, settings=remaining, dropped=[*launch.dropped, dropped])


def _detect_file_dialect(command: Command) -> str | None:
    """Detect the dialect of the user's configuration file from its keys."""
    names = list(values_after("--config", command.words))
    if not names:
        return None
    paths = list(values_after("--config-path", command.words))
    path = paths[-1] if paths else _find_config_file(command.program, names[-1])
    if path is None:
        return None
    keys = map(key_to_flag, entry_keys(Path(path), names[-1]))
    return identify_program(replace(command, words=(*command.words, *keys)), vocabularies()).dialect


def _select_dialect(program: Program) -> Dialect:
    if program.dialect == "tensorflow" and program.purpose in (Purpose.VALIDATE, Purpose.INFER):
        return tensorflow_validation()
    if program.dialect == "popart" and program.purpose is Purpose.SYNTHETIC_BENCHMARK:
        return popart_benchmark()
    if program.purpose is Purpose.DATA_BENCHMARK:
        return pytorch_benchmark()
    return DIALECTS[program.dialect]()


def _parse(program: Program, dialect: Dialect) -> tuple[Namespace, list[Problem], str]:
    """Parse the arguments of a program: by flag, the unknown ones, and the help if requested."""
    parser = ConfigArgumentParser(prog=program.name, allow_abbrev=False, add_help=False)
    parser.add_argument("--help", "-h", action="store_true", help="print the options")
    parser.add_argument("--config", metavar="NAME", help="a named configuration")
    parser.add_argument("--config-path", metavar="FILE", help="the file that defines it")
    add_flags(parser, dialect)
    args, extra = parser.parse_known_args(expand_prefixes(list(program.words), parser))
    unknown = unknown_argument_problems(
        extra, parser, partial(find_in_other_dialects, current=dialect)
    )
    return args, unknown, parser.format_help() if args.help else ""


def _find_config(
    name: str | None, path: str | None, command: Command, program: Program
) -> tuple[DialectFile, str | None]:
    """Read the configuration that a command names; also its name if it is a shipped one.

    A file of the user's that defines the name wins.
    """
    if name is None and path is None:
        return ({}, [], []), None
    file = path or _find_config_file(command.program, name or "")
    if file is not None:
        dialect = DIALECTS[program.dialect]()
        return read_dialect_file(
            name, file, dialect, partial(find_in_other_dialects, current=dialect)
        ), None
    names = [f"{INFERENCE}/{name}", name or ""]
    if program.purpose is not Purpose.INFER:
        names.reverse()
    chosen = next((candidate for candidate in names if candidate in shipped_configs()), None)
    if chosen is None:
        return ({}, _unknown_config_problems(name or "", command.program), []), None
    settings, problems = read_named_config(chosen, None)
    # Other options may change the application's defaults, so its dialect decides about them.
    is_of_program = shipped_configs()[chosen].parent.name == program.dialect
    defaults = application_defaults(chosen) if is_of_program else set()
    explicit = {option: setting for option, setting in settings.items() if option not in defaults}
    return (explicit, problems, []), chosen


def _unknown_config_problems(name: str, program: str) -> list[Problem]:
    """Suggest near names from every readable file that could have defined the name."""
    known, unreadable = [*shipped_configs()], []
    for path in _config_files(program):
        try:
            known += entry_names(path)
        except ConfigError as error:
            unreadable.append(Problem("", str(error)))
    near = near_names(name, known)
    hint = f"did you mean {', '.join(near)}?" if near else "`convoy configs` lists the shipped ones"
    text = f"{name!r} is not a shipped configuration, and no {_CONFIG_FILE} here defines it; {hint}"
    return [Problem("--config", text), *unreadable]


def _find_config_file(program: str, name: str) -> str | None:
    """Find the configs.yml beside the program or in the current folder that defines a name."""
    paths = (path for path in _config_files(program) if has_entry(path, name))
    return next((str(path) for path in paths), None)


def _config_files(program: str) -> list[Path]:
    paths = (Path(program).parent / _CONFIG_FILE, Path(_CONFIG_FILE))
    return [path for path in paths if path.exists()]


def _launcher_settings(launch: LaunchRequest) -> Settings:
    """Return the options that the launcher sets and the program can no longer change."""
    names = ("hosts", "instances", "replicas")
    settings = {name: setting for name, setting in launch.settings.items() if name in names}
    cache = launch.settings.get("executable_cache_path")
    return settings | ({"model_cache_path": cache} if cache else {})


def _select_verb(program: Program, parsed: ParsedFlags) -> str:
    """Select the verb: the synthetic benchmark trains only with `--mode train`, and a flag may
    request the data benchmark."""
    if any(word.mapped_to == DATA_BENCH_NOTE for word in parsed.mapped):
        return DATA_BENCH
    if program.purpose is Purpose.SYNTHETIC_BENCHMARK:
        return "train" if "train" in values_after("--mode", program.words) else "validate"
    return _VERBS[program.purpose]


def _adapt_to_verb(parsed: ParsedFlags, named: Settings, verb: str) -> Settings:
    """Adapt training options to another verb.

    Validation uses the batch size of training, and random weights without a checkpoint. The data
    benchmark runs 2 epochs, not the epochs of a training run.
    """
    settings = dict(parsed.settings)
    if verb == DATA_BENCH and "updates" not in settings:
        return {"epoch": Setting(2.0, "convoy data bench"), **settings}
    if verb == "validate":
        size = (named | settings).get("micro_batch_size")
        if size is not None:
            settings.setdefault("valid_batch_size", size)
        if parsed.target is None:
            settings["random_weights"] = Setting(True, "no checkpoint was specified")
    return settings


def _apply_overrides(settings: Settings, overrides: Settings) -> Settings:
    """Apply overrides, which also replace options that are mutually exclusive with them."""
    replaced = {
        name for rivals in exclusive_pairs() if overrides.keys() & set(rivals) for name in rivals
    }
    return {name: setting for name, setting in settings.items() if name not in replaced} | overrides


def _final_mappings(
    parsed: ParsedFlags, settings: Settings
) -> tuple[list[MappedWord], list[DroppedWord]]:
    """Return what each argument is mapped to, and the arguments that overrides replace entirely."""
    lost = {
        " ".join(option_table()[name].to_cli_args(setting.value))
        for name, setting in parsed.settings.items()
        if name not in settings or settings[name].value != setting.value
    }
    mapped = [mapping for mapping in parsed.mapped if mapping.mapped_to not in lost]
    words = {mapping.word for mapping in mapped}
    replaced = dict.fromkeys(mapping.word for mapping in parsed.mapped if mapping.word not in words)
    reason = "overridden by an option before `--`"
    return mapped, [DroppedWord(word, reason) for word in replaced]


def _unused_launch_settings(launch: LaunchRequest) -> list[DroppedWord]:
    """Return the launcher settings that have no effect."""
    reasons = {
        "profile_dir": "profiles are written to the run folder",
        "verbosity": "`--progress` sets how much is printed",
        "synthetic_data": "the program's own options select the data",
    }
    return [
        DroppedWord(f"{launch.settings[name].source}: {name.replace('_', ' ')}", reason)
        for name, reason in reasons.items()
        if name in launch.settings
    ]


def _device_count_problems(launch: LaunchRequest, chosen: Settings) -> list[Problem]:
    """Report a launcher's devices per replica that differ from the number of stages."""
    devices = launch.settings.get("devices_per_replica")
    if devices is None:
        return []
    stages = build_config(setting_values(chosen)).pipeline.planned_stages
    if devices.value == stages:
        return []
    text = f"devices per replica: {devices.value}, but the program sets stages: {stages}"
    return [Problem(devices.source, f"{text}; set both to the same value")]


def _missing_target_problems(program: Program, parsed: ParsedFlags) -> list[Problem]:
    if program.purpose not in (Purpose.RESUME, Purpose.AVERAGE) or parsed.target is not None:
        return []
    flag = "--restore-path" if program.dialect == "tensorflow" else "--checkpoint-input-path"
    return [Problem(program.name, f"needs {flag} RUN")]


def _unused_target_words(program: Program, parsed: ParsedFlags) -> list[DroppedWord]:
    if program.purpose is not Purpose.TRAIN or parsed.target is None:
        return []
    reason = "train.py starts a new run; restore.py resumes one"
    return [DroppedWord(parsed.target, reason)]


# Settings → arguments of the canonical command

_OPTIONS_WITH_DEFAULTS = ("model", "data")  # they set the defaults of other options
_UNSET_VALUES = (None, ())


def settings_to_args(settings: Settings) -> list[str]:
    """Write settings as canonical flags."""
    return [
        word
        for name, setting in settings.items()
        for word in option_table()[name].to_cli_args(setting.value)
    ]


def canonical_args(
    config: str | None, resolved: ResolvedConfig, environment: Mapping[str, str]
) -> list[str]:
    """Return every option that neither the configuration nor the canonical defaults imply."""
    changed = _changed_settings(resolved.settings, _implied_settings(config, resolved, environment))
    if config is not None and _cannot_unset(changed):
        return canonical_args(None, resolved, environment)
    if reads_no_files(resolved.settings):
        changed.pop("data_dir", None)  # an error in the canonical dialect
    config_args = ["--config", config] if config else []
    return [*config_args, *settings_to_args(changed)]


def _implied_settings(
    config: str | None, resolved: ResolvedConfig, environment: Mapping[str, str]
) -> Settings:
    """Return the value each option has if only network and data are given.

    Network and data themselves have their default values.
    """
    named = read_named_config(config, None)[0]
    chosen = {name: resolved.settings[name] for name in _OPTIONS_WITH_DEFAULTS}
    settings, _ = merge_sources(RequestedOptions(chosen, named, environment=environment))
    for name in _OPTIONS_WITH_DEFAULTS:
        settings[name] = named.get(name, Setting(option_table()[name].default, "default"))
    return settings


def _changed_settings(settings: Mapping[str, Setting], implied: Mapping[str, Setting]) -> Settings:
    """Return the settings that differ from the implied ones.

    An option is unset by giving the one that excludes it, even at its default value.
    """
    changed = {name for name, setting in settings.items() if setting.value != implied[name].value}
    unset = {name for name in changed if settings[name].value in _UNSET_VALUES}
    for rivals in exclusive_pairs():
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in _UNSET_VALUES}
    return {name: setting for name, setting in settings.items() if name in changed}


def _cannot_unset(changed: Settings) -> bool:
    """Whether an option must be unset that no other option excludes: no flag can do that."""
    unset = {name for name, setting in changed.items() if setting.value is None}
    return not unset <= {
        name
        for rivals in exclusive_pairs()
        if changed.keys() & set(rivals) - unset
        for name in rivals
    }
