"""A command of another application → what it means here: a verb, options, and who set them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from convoy.config.catalog import MODELS
from convoy.config.command_line import Around, Parser, Read, add_flags, as_flags, read_flags
from convoy.config.commands.found import file_beside, find_config
from convoy.config.commands.launch import Launch
from convoy.config.commands.programs import Known, Program, Purpose, behind, identify
from convoy.config.commands.reading import Reading
from convoy.config.commands.split import Command
from convoy.config.dialects.all import DIALECTS
from convoy.config.dialects.dialect import Dialect
from convoy.config.dialects.popart import popart_benchmark
from convoy.config.dialects.pytorch import NOT_THEIRS, pytorch_benchmark
from convoy.config.dialects.speech import MEASURES_DATA, Became, Given
from convoy.config.dialects.tensorflow import tensorflow_validation
from convoy.config.dialects.tensorflow_models import FAMILIES
from convoy.config.layers import Setting, layer, values_of
from convoy.config.named import entry_keys, shipped
from convoy.config.problems import Dropped, Problem
from convoy.config.resolve import RIVALS, Asked
from convoy.config.schema import option_table
from convoy.config.spelling import spell_out, unknown_words
from convoy.errors import ConfigError

_BENCH = "data bench"
_PASSES = Setting(2.0, "convoy data bench")
_VERBS = {
    Purpose.TRAIN: "train",
    Purpose.RESUME: "resume",
    Purpose.VALIDATE: "validate",
    Purpose.AVERAGE: "average",
    Purpose.INFER: "validate",
    Purpose.SYNTHETIC_BENCHMARK: "train",
    Purpose.DATA_BENCHMARK: _BENCH,
}
_WORKERS = "environment TF_CONFIG"
_OWN = ("--config", "--config-path", "--help")
_LAYOUT = ("hosts", "instances", "replicas")
_IN_FRONT = "an option in front of the command wins"


@dataclass(frozen=True)
class Spoken:
    """What a command asks for, before it is resolved."""

    program: Program
    verb: str
    asked: Asked
    config: str | None = None  # the shipped configuration it names
    target: str | None = None
    wants_help: bool = False
    became: list[Became] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)


def interpret(
    reading: Reading, extra: Given, environment: Mapping[str, str], dialect: str | None = None
) -> Spoken:
    """What a command means; `extra` are canonical options, which win over its own words."""
    command, launch = reading.command, reading.launch
    program = identify(command, _known(), dialect or _dialect_of_file(command))
    if program.purpose not in _VERBS:
        raise ConfigError(f"{program.name} ({program.purpose}) is not available in this version")
    launch = _without_workers(launch, program)
    spoken = _dialect(program)
    parser = _parser(program, spoken)
    own, rest = parser.parse_known_args(spell_out(list(program.words), parser))
    named = find_config(own.config, own.config_path, command, program, DIALECTS[program.dialect]())
    variables = {**environment, **launch.environment}
    under = layer(_folder(variables), named.settings)
    read = read_flags(own.typed, spoken, Around(under, _decided(launch)))
    verb = _verb(program, read)
    given = _overridden(_purposeful(read, named.settings, verb), extra)
    problems = [*reading.problems, *unknown_words(rest, parser, spoken), *read.problems]
    problems += [*named.problems, *_devices(launch, given, named.settings), *_target(program, read)]
    unsaid = spoken.settings(values_of(layer(named.settings, given)))
    became, dropped = _heard(read, given)
    return Spoken(
        program,
        verb,
        Asked(given, named.settings, problems, variables, unsaid),
        named.shipped,
        read.target,
        own.help,
        became,
        [*_left_out(launch), *named.dropped, *dropped, *_spare_target(program, read)],
        launch.environment,
    )


def _verb(program: Program, read: Read) -> str:
    """The synthetic benchmark trains only when it is told to, and a word may ask for the data."""
    if any(one.what == MEASURES_DATA for one in read.became):
        return _BENCH
    if program.purpose is Purpose.SYNTHETIC_BENCHMARK:
        return "train" if "train" in behind("--mode", program.words) else "validate"
    return _VERBS[program.purpose]


def _without_workers(launch: Launch, program: Program) -> Launch:
    """TF_CONFIG is read by TensorFlow's `--distributed` alone."""
    if program.dialect == "tensorflow" and "--distributed" in program.words:
        return launch
    theirs = {name for name, one in launch.given.items() if one.source == _WORKERS}
    kept = {name: one for name, one in launch.given.items() if name not in theirs}
    why = Dropped("TF_CONFIG", "only --distributed of the TensorFlow program reads it")
    return replace(launch, given=kept, dropped=(*launch.dropped, *[why] * bool(theirs)))


def _dialect_of_file(command: Command) -> str | None:
    """A file of the user's that defines the configuration tells by its keys who wrote it."""
    names, paths = (list(behind(one, command.words)) for one in ("--config", "--config-path"))
    if not names:
        return None
    path = paths[-1] if paths else file_beside(command.program, names[-1])
    if path is None:
        return None
    keys = map(_as_word, entry_keys(Path(path), names[-1]))
    more = replace(command, words=(*command.words, *keys))
    return identify(more, _known()).dialect


def _as_word(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _known() -> dict[str, Known]:
    """What each dialect could have said, on a command line or in a file."""
    folders = {name: path.parent.name for name, path in shipped().items()}
    return {
        name: Known(
            {*dialect().by_spelling, *map(_as_word, dialect().by_name), *_OWN}
            - (NOT_THEIRS if name == "pytorch" else set()),
            {config for config, folder in folders.items() if folder == name},
            FAMILIES if name == "tensorflow" else MODELS,
        )
        for name, dialect in DIALECTS.items()
    }


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


def help_of(program: Program) -> str:
    """The options of a program, with the canonical meaning of each."""
    return _parser(program, _dialect(program)).format_help()


def _folder(environment: Mapping[str, str]) -> Given:
    """The usual folder of data: its name may tell which data set is meant."""
    folder = environment.get("DATA_DIR")
    return {"data_dir": Setting(folder, "environment DATA_DIR")} if folder else {}


def _decided(launch: Launch) -> Given:
    """What the program may not decide any more."""
    given = {name: one for name, one in launch.given.items() if name in _LAYOUT}
    cache = launch.given.get("executable_cache_path")
    return given | ({"model_cache_path": cache} if cache else {})


def _left_out(launch: Launch) -> list[Dropped]:
    """Words of the launcher that nothing comes of, and what it says to no avail."""
    reasons = {
        "profile_dir": "a profile lies in the run's folder",
        "verbosity": "`--progress` says how much is shown",
        "synthetic_data": "the program's own options choose the data",
    }
    vain = [
        Dropped(f"{launch.given[name].source}: {name.replace('_', ' ')}", reason)
        for name, reason in reasons.items()
        if name in launch.given
    ]
    return [*launch.dropped, *vain]


def _overridden(given: Given, extra: Given) -> Given:
    """Canonical options win, also over rivals that say the same in another way."""
    beaten = {name for rivals in RIVALS if extra.keys() & set(rivals) for name in rivals}
    return {name: one for name, one in given.items() if name not in beaten} | extra


def _heard(read: Read, given: Given) -> tuple[list[Became], list[Dropped]]:
    """What came of the words in the end, and those of which nothing did."""
    lost = {
        " ".join(as_flags(option_table()[name], one.value))
        for name, one in read.given.items()
        if name not in given or given[name].value != one.value
    }
    became = [one for one in read.became if one.what not in lost]
    words = {one.word for one in became}
    left = dict.fromkeys(one.word for one in read.became if one.word not in words)
    return became, [*read.dropped, *(Dropped(word, _IN_FRONT) for word in left)]


def _purposeful(read: Read, named: Given, verb: str) -> Given:
    """Validation takes as many images at a time as training would, and what weights there are.

    Data is measured as often as it was said, not as often as a training would see it.
    """
    if verb == _BENCH:
        said = "updates" in read.given
        return read.given if said else {"epoch": _PASSES, **read.given}
    if verb != "validate":
        return read.given
    given = dict(read.given)
    size = layer(named, given).get("micro_batch_size")
    if size is not None:
        given.setdefault("valid_batch_size", size)
    if read.target is None:
        given["random_weights"] = Setting(True, "no checkpoint was named")
    return given


def _target(program: Program, read: Read) -> list[Problem]:
    needed = program.purpose in (Purpose.RESUME, Purpose.AVERAGE)
    flag = "--restore-path" if program.dialect == "tensorflow" else "--checkpoint-input-path"
    if needed and read.target is None:
        return [Problem(program.name, f"needs {flag} RUN")]
    return []


def _spare_target(program: Program, read: Read) -> list[Dropped]:
    if program.purpose is Purpose.TRAIN and read.target is not None:
        reason = "a training begins anew; restore.py goes on, and validates what it wrote"
        return [Dropped(read.target, reason)]
    return []


def _devices(launch: Launch, given: Given, named: Given) -> list[Problem]:
    """A launcher's devices of one replica are its stages."""
    wanted = launch.given.get("devices_per_replica")
    values = values_of(layer(named, given))
    stages = values.get("shards") or len(values.get("pipeline_splits") or ()) + 1
    if wanted is None or wanted.value == stages:
        return []
    text = f"devices of a replica: {wanted.value}, but the program asks for stages: {stages}"
    return [Problem(wanted.source, f"{text}; make them agree")]
