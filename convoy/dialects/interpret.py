"""A command of another application → what it means here: a verb, its target and its options, each
with its source.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from convoy.config.command_line import (
    ParsedFlags,
    Parser,
    add_flags,
    as_flags,
    read_flags,
    spell_out,
    unknown_words,
)
from convoy.config.flags import MEASURES_DATA, Dialect, Given, MappedWord
from convoy.config.named import (
    INFERENCE,
    entry_keys,
    entry_names,
    granted,
    has_entry,
    read_dialect_file,
    read_named,
    shipped,
)
from convoy.config.resolve import RequestedOptions, Resolved, layer_sources
from convoy.config.schema import build_config, mutually_exclusive, option_table
from convoy.config.settings import Dropped, Problem, Setting, layer, values_of
from convoy.dialects import DIALECTS, elsewhere
from convoy.dialects.command import (
    Command,
    Program,
    Purpose,
    as_flag,
    identify,
    values_after,
    vocabularies,
)
from convoy.dialects.launch_request import LaunchRequest, contradictions, read_environment
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
_CONFIG_FILE = "configs.yml"  # beside the program, in both applications that have one


@dataclass(frozen=True)
class Interpretation:
    """What a command means, before its options are resolved."""

    program: Program
    verb: str
    asked: RequestedOptions
    config: str | None = None  # the shipped configuration it names
    target: str | None = None  # the run or checkpoint that the verb works on
    wants_help: bool = False
    mapped: list[MappedWord] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for the run


def interpret(
    command: Command,
    environment: Mapping[str, str],
    dialect: str | None = None,
    overrides: Given | None = None,
    problems: Sequence[Problem] = (),
) -> Interpretation:
    """What a command means. `overrides` are canonical options, which win over its own words;
    `problems` are theirs, reported with those of the command."""
    launch = read_launch(command, environment)
    program = identify(command, vocabularies(), dialect or _dialect_of_file(command))
    if program.purpose not in _VERBS:
        raise ConfigError(f"{program.name} ({program.purpose}) is not available in this version")
    launch = _without_unread_workers(launch, program)
    table = _dialect(program)
    own, unknown = _parse(program, table)
    named = _find_config(own.config, own.config_path, command, program)
    variables = {**environment, **launch.environment}
    under = layer(_data_folder(variables), named.settings)
    parsed = read_flags(own.typed, table, under, _decided(launch))
    verb = _verb(program, parsed)
    given = _override(_adapt_to_verb(parsed, named.settings, verb), overrides or {})
    chosen = layer(named.settings, given)
    wrong = [*launch.problems, *problems, *unknown, *parsed.problems, *named.problems]
    wrong += [*_wrong_devices(launch, chosen), *_missing_target(program, parsed)]
    mapped, replaced = _final_mappings(parsed, given)
    dropped = [*launch.dropped, *_without_effect(launch), *named.dropped, *parsed.dropped]
    return Interpretation(
        program,
        verb,
        RequestedOptions(
            given, named.settings, wrong, variables, table.settings(values_of(chosen))
        ),
        named.shipped,
        parsed.target,
        own.help,
        mapped,
        [*dropped, *replaced, *_unused_target(program, parsed)],
        launch.environment,
    )


def read_launch(command: Command, environment: Mapping[str, str]) -> LaunchRequest:
    """What everything in front of the program asks for."""
    launchers = read_launchers(command.launchers)
    # A launcher's own value of a variable stands nearer to the program.
    exported = {name: text for name, text in environment.items() if _counts(name, command)}
    request = read_environment({**exported, **command.environment, **launchers.environment})
    reason = "the program runs in convoy's own interpreter"
    flags = [Dropped(flag, reason) for flag in command.interpreter[1:]]
    conflicts = contradictions([launchers.settings, request.settings])
    return LaunchRequest(
        settings=request.settings | launchers.settings,
        environment=request.environment,
        dropped=[*request.dropped, *launchers.dropped, *flags],
        problems=[*launchers.problems, *request.problems, *conflicts],
    )


def _counts(name: str, command: Command) -> bool:
    """Variables that set the number of processes; a shell may have them from a launcher."""
    if name == "TF_CONFIG":
        return "--distributed" in command.words
    return name.startswith("POPDIST_NUM_")


def _without_unread_workers(launch: LaunchRequest, program: Program) -> LaunchRequest:
    """TF_CONFIG is read by TensorFlow's `--distributed` alone."""
    kept = {
        name: setting
        for name, setting in launch.settings.items()
        if setting.source != "environment TF_CONFIG"
    }
    is_read = program.dialect == "tensorflow" and "--distributed" in program.words
    if is_read or kept == launch.settings:
        return launch
    why = Dropped("TF_CONFIG", "only --distributed of the TensorFlow program reads it")
    return replace(launch, settings=kept, dropped=[*launch.dropped, why])


def _dialect_of_file(command: Command) -> str | None:
    """The dialect of the user's file that defines the configuration, from its keys."""
    names = list(values_after("--config", command.words))
    if not names:
        return None
    paths = list(values_after("--config-path", command.words))
    path = paths[-1] if paths else _file_beside(command.program, names[-1])
    if path is None:
        return None
    keys = map(as_flag, entry_keys(Path(path), names[-1]))
    return identify(replace(command, words=(*command.words, *keys)), vocabularies()).dialect


def _dialect(program: Program) -> Dialect:
    if program.dialect == "tensorflow" and program.purpose in (Purpose.VALIDATE, Purpose.INFER):
        return tensorflow_validation()
    if program.dialect == "popart" and program.purpose is Purpose.SYNTHETIC_BENCHMARK:
        return popart_benchmark()
    if program.purpose is Purpose.DATA_BENCHMARK:
        return pytorch_benchmark()
    return DIALECTS[program.dialect]()


def _parser(program: Program, dialect: Dialect) -> Parser:
    parser = Parser(prog=program.name, allow_abbrev=False, add_help=False)
    parser.add_argument("--help", "-h", action="store_true", help="print the options")
    parser.add_argument("--config", metavar="NAME", help="a named configuration")
    parser.add_argument("--config-path", metavar="FILE", help="the file it stands in")
    add_flags(parser, dialect)
    return parser


def _parse(program: Program, dialect: Dialect) -> tuple[Namespace, list[Problem]]:
    """The words of a program by flag, and those that it does not know."""
    parser = _parser(program, dialect)
    own, unknown = parser.parse_known_args(spell_out(list(program.words), parser))
    return own, unknown_words(unknown, parser, partial(elsewhere, here=dialect))


def help_of(program: Program) -> str:
    """The options of a program, with the canonical meaning of each."""
    return _parser(program, _dialect(program)).format_help()


@dataclass(frozen=True)
class _NamedConfig:
    """A configuration that a command names: a shipped one, or an entry of a file."""

    settings: Given = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    shipped: str | None = None


def _find_config(
    name: str | None, path: str | None, command: Command, program: Program
) -> _NamedConfig:
    """A file of the user's that knows the name wins over what is shipped."""
    if name is None and path is None:
        return _NamedConfig()
    file = path or _file_beside(command.program, name or "")
    if file is not None:
        dialect = DIALECTS[program.dialect]()
        return _NamedConfig(
            *read_dialect_file(name, file, dialect, partial(elsewhere, here=dialect))
        )
    names = [f"{INFERENCE}/{name}", name or ""]
    if program.purpose is not Purpose.INFER:
        names.reverse()
    chosen = next((each for each in names if each in shipped()), None)
    if chosen is None:
        return _NamedConfig(problems=_unknown_config(name or "", command.program))
    settings, problems = read_named(chosen, None)
    # Other options may change what the application takes for granted: its dialect decides that.
    is_own = shipped()[chosen].parent.name == program.dialect
    unsaid = granted(chosen) if is_own else set()
    said = {option: setting for option, setting in settings.items() if option not in unsaid}
    return _NamedConfig(said, problems, shipped=chosen)


def _unknown_config(name: str, program: str) -> list[Problem]:
    """Near names come from all places that could have defined it, if they can be read."""
    known, unreadable = [*shipped()], []
    for path in _config_files(program):
        try:
            known += entry_names(path)
        except ConfigError as error:
            unreadable.append(Problem("", str(error)))
    near = near_names(name, known)
    hint = f"did you mean {', '.join(near)}?" if near else "`convoy configs` lists those shipped"
    text = f"{name!r} is not shipped, and no {_CONFIG_FILE} here defines it; {hint}"
    return [Problem("--config", text), *unreadable]


def _file_beside(program: str, name: str) -> str | None:
    """The usual file, in the folder of the program or here, if it defines the name."""
    found = (path for path in _config_files(program) if has_entry(path, name))
    return next((str(path) for path in found), None)


def _config_files(program: str) -> list[Path]:
    paths = (Path(program).parent / _CONFIG_FILE, Path(_CONFIG_FILE))
    return [path for path in paths if path.exists()]


def _data_folder(environment: Mapping[str, str]) -> Given:
    """The usual folder of data: its name may tell which data set is meant."""
    folder = environment.get("DATA_DIR")
    return {"data_dir": Setting(folder, "environment DATA_DIR")} if folder else {}


def _decided(launch: LaunchRequest) -> Given:
    """Options that the launcher sets, and the program no longer can."""
    names = ("hosts", "instances", "replicas")
    given = {name: setting for name, setting in launch.settings.items() if name in names}
    cache = launch.settings.get("executable_cache_path")
    return given | ({"model_cache_path": cache} if cache else {})


def _verb(program: Program, parsed: ParsedFlags) -> str:
    """The synthetic benchmark trains only with `--mode train`, and a flag may ask for the data."""
    if any(word.to == MEASURES_DATA for word in parsed.mapped):
        return DATA_BENCH
    if program.purpose is Purpose.SYNTHETIC_BENCHMARK:
        return "train" if "train" in values_after("--mode", program.words) else "validate"
    return _VERBS[program.purpose]


def _adapt_to_verb(parsed: ParsedFlags, named: Given, verb: str) -> Given:
    """Validation takes as many images at a time as training would, and what weights there are.

    Data is measured as often as was asked for, not as often as a training would see it.
    """
    given = dict(parsed.given)
    if verb == DATA_BENCH and "updates" not in given:
        return {"epoch": Setting(2.0, "convoy data bench"), **given}
    if verb == "validate":
        size = layer(named, given).get("micro_batch_size")
        if size is not None:
            given.setdefault("valid_batch_size", size)
        if parsed.target is None:
            given["random_weights"] = Setting(True, "no checkpoint was named")
    return given


def _override(given: Given, overrides: Given) -> Given:
    """Overrides win, also over rivals that say the same in another way."""
    beaten = {
        name for rivals in mutually_exclusive() if overrides.keys() & set(rivals) for name in rivals
    }
    return {name: setting for name, setting in given.items() if name not in beaten} | overrides


def _final_mappings(parsed: ParsedFlags, given: Given) -> tuple[list[MappedWord], list[Dropped]]:
    """What each word became in the end, and the words of which overrides left nothing."""
    lost = {
        " ".join(as_flags(option_table()[name], setting.value))
        for name, setting in parsed.given.items()
        if name not in given or given[name].value != setting.value
    }
    mapped = [mapping for mapping in parsed.mapped if mapping.to not in lost]
    words = {mapping.word for mapping in mapped}
    left = dict.fromkeys(each.word for each in parsed.mapped if each.word not in words)
    return mapped, [Dropped(word, "an option in front of the command wins") for word in left]


def _without_effect(launch: LaunchRequest) -> list[Dropped]:
    """What a launcher asks for that nothing comes of."""
    reasons = {
        "profile_dir": "a profile lies in the run's folder",
        "verbosity": "`--progress` says how much is shown",
        "synthetic_data": "the program's own options choose the data",
    }
    return [
        Dropped(f"{launch.settings[name].source}: {name.replace('_', ' ')}", reason)
        for name, reason in reasons.items()
        if name in launch.settings
    ]


def _wrong_devices(launch: LaunchRequest, chosen: Given) -> list[Problem]:
    """A launcher's devices of one replica are its stages."""
    wanted = launch.settings.get("devices_per_replica")
    if wanted is None:
        return []
    stages = build_config(values_of(chosen)).pipeline.planned_stages
    if wanted.value == stages:
        return []
    text = f"devices of a replica: {wanted.value}, but the program asks for stages: {stages}"
    return [Problem(wanted.source, f"{text}; make them agree")]


def _missing_target(program: Program, parsed: ParsedFlags) -> list[Problem]:
    if program.purpose not in (Purpose.RESUME, Purpose.AVERAGE) or parsed.target is not None:
        return []
    flag = "--restore-path" if program.dialect == "tensorflow" else "--checkpoint-input-path"
    return [Problem(program.name, f"needs {flag} RUN")]


def _unused_target(program: Program, parsed: ParsedFlags) -> list[Dropped]:
    if program.purpose is not Purpose.TRAIN or parsed.target is None:
        return []
    reason = "a training begins anew; restore.py goes on, and validates what it wrote"
    return [Dropped(parsed.target, reason)]


# Settings → the words of the canonical command that means them

_BRINGING = ("model", "data")  # they bring values of other options
_UNSET = (None, ())


def flags_of(settings: Given) -> list[str]:
    """These settings as canonical flags."""
    table = option_table()
    return [
        word for name, setting in settings.items() for word in as_flags(table[name], setting.value)
    ]


def words_of_run(
    config: str | None, resolved: Resolved, environment: Mapping[str, str]
) -> list[str]:
    """All options of a run that neither the configuration nor the canonical defaults imply."""
    said = _differing(resolved.settings, _implied(config, resolved, environment))
    if config is not None and _cannot_unset(said):
        return words_of_run(None, resolved, environment)
    choice = ["--config", config] if config else []
    return [*choice, *flags_of(said)]


def _implied(config: str | None, resolved: Resolved, environment: Mapping[str, str]) -> Given:
    """Each option as it would be if only network and data were given, and these as if not."""
    named = read_named(config, None)[0]
    chosen = {name: resolved.settings[name] for name in _BRINGING}
    settings, _ = layer_sources(RequestedOptions(chosen, named, environment=environment))
    for name in _BRINGING:
        settings[name] = named.get(name, Setting(option_table()[name].default, "default"))
    return settings


def _differing(settings: Mapping[str, Setting], implied: Mapping[str, Setting]) -> Given:
    """To unset an option, its rival has to be given, even where it has its usual value."""
    changed = {name for name, setting in settings.items() if setting.value != implied[name].value}
    unset = {name for name in changed if settings[name].value in _UNSET}
    for rivals in mutually_exclusive():
        if unset & set(rivals):
            changed |= {name for name in rivals if settings[name].value not in _UNSET}
    return {name: setting for name, setting in settings.items() if name in changed}


def _cannot_unset(said: Given) -> bool:
    """Whether an option would have to be unset that has no rival to do it: no flag does."""
    unset = {name for name, setting in said.items() if setting.value is None}
    return not unset <= {
        name
        for rivals in mutually_exclusive()
        if said.keys() & set(rivals) - unset
        for name in rivals
    }
