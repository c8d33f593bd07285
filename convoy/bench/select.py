"""Which variants a command line of the benchmark runner means, as commands ready to run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from convoy.bench.definition import Benchmark, Variant, variants
from convoy.bench.read import Definitions, read_benchmarks
from convoy.bench.runner import USUAL_FILE, BenchConfig, read_runner
from convoy.config.problems import Dropped, Problem, refuse
from convoy.config.user_text import printable
from convoy.errors import ConfigError
from convoy.registry import suggest

SHIPPED = Path(__file__).parent.parent / "benchmarks"

_NO_WANDB = "left out without --allow-wandb"
_ASIDE = "prepares a machine of the reference applications; nothing is needed here"


@dataclass(frozen=True)
class Selection:
    """The variants in the order of their benchmarks, or of the names given."""

    variants: tuple[Variant, ...]
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know of the choice


def select(words: list[str], environment: Mapping[str, str]) -> Selection:
    """What the words behind the runner's name mean; everything wrong with them at once."""
    config, problems = read_runner(words)
    notes: list[str] = []
    try:
        definitions = _definitions(config.spec, notes)
    except ConfigError as error:  # names cannot be looked up then
        refuse([*problems, Problem("", str(error))])
        raise
    found = {name: variants(one, environment) for name, one in definitions.benchmarks.items()}
    refuse([*problems, *_unknown_names(config, found, definitions.merged)])
    chosen = _chosen(config, found, notes)
    return Selection(
        tuple(_adapted(one, config) for one in chosen),
        (*config.dropped, *dict.fromkeys(_dropped(chosen, config))),
        tuple(notes),
    )


def shipped_files() -> list[Path]:
    """The definitions that come with the program."""
    return sorted(SHIPPED.glob("*.yml"))


def without_wandb(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command without every option that has wandb in its name, and without their values."""
    kept: list[str] = []
    before = ""  # the option whose value this word may be
    for word in words:
        if _is_wandb(word):
            before = word
            continue
        # `--wandb` itself is a switch, so what follows is another's.
        is_value = before not in ("", "--wandb") and "=" not in before and not word.startswith("-")
        before = ""
        if not is_value:
            kept.append(word)
    return tuple(kept)


def _definitions(spec: tuple[str, ...], notes: list[str]) -> Definitions:
    """All files as one; each name may come only once."""
    together = Definitions({})
    problems: list[Problem] = []
    for path in dict.fromkeys(_files(spec, notes)):
        try:
            found = read_benchmarks(path)
        except ConfigError as error:
            problems.append(Problem("", str(error)))
            continue
        for name in [one for one in found.benchmarks if one in together.benchmarks]:
            first, second = together.benchmarks[name].origin, found.benchmarks[name].origin
            problems.append(Problem(f"{second}: {name}", f"is already defined in {first}"))
        together = Definitions(
            together.benchmarks | found.benchmarks, (*together.merged, *found.merged)
        )
    refuse(problems)
    return together


def _files(spec: tuple[str, ...], notes: list[str]) -> Iterator[Path]:
    """The reference applications bring a `benchmarks.yml`; ours stand in where it is missing."""
    for name in spec:
        path = Path(name)
        if path.name == USUAL_FILE and not path.exists():
            ours = shipped_files()
            names = ", ".join(one.name for one in ours)
            notes.append(f"there is no {printable(name)}: taking those shipped, {names}")
            yield from ours
        else:
            yield path


def _unknown_names(
    config: BenchConfig, found: Mapping[str, list[Variant]], merged: tuple[str, ...]
) -> Iterator[Problem]:
    known = {*found, *(one.name for several in found.values() for one in several)}
    for name in config.benchmark:
        if name in merged:
            yield Problem("--benchmark", f"{name!r} is no benchmark: it has no cmd")
        elif name not in known:
            yield Problem("--benchmark", f"{name!r} is unknown; {suggest(name, known)}")


def _chosen(
    config: BenchConfig, found: Mapping[str, list[Variant]], notes: list[str]
) -> list[Variant]:
    """Those named, each once; or all, of which the convergence runs want a word of their own."""
    by_name = {one.name: [one] for several in found.values() for one in several} | dict(found)
    if config.benchmark:
        named = [one for name in config.benchmark for one in by_name[name]]
        return list({one.name: one for one in named}.values())
    every = [one for several in found.values() for one in several]
    if config.include_convergence:
        return every
    left_out = {one.benchmark.name for one in every if one.benchmark.converges}
    if len(left_out) == len(found):
        raise ConfigError("all benchmarks are convergence runs; add --include-convergence")
    if left_out:
        notes.append(
            f"{len(left_out)} of {len(found)} benchmarks are convergence runs and left out; "
            "--include-convergence takes them, or their names"
        )
    return [one for one in every if not one.benchmark.converges]


def _adapted(variant: Variant, config: BenchConfig) -> Variant:
    words = variant.words if config.allow_wandb else without_wandb(variant.words)
    if not config.compile_only:
        return replace(variant, words=words)
    # Nothing is measured where nothing runs.
    unmeasured: Benchmark = replace(variant.benchmark, metrics={}, derived={})
    return replace(variant, benchmark=unmeasured, words=(*words, "--compile-only"))


def _dropped(chosen: list[Variant], config: BenchConfig) -> Iterator[Dropped]:
    for variant in chosen:
        if not config.allow_wandb:
            yield from (Dropped(word, _NO_WANDB) for word in variant.words if _is_wandb(word))
        yield from (Dropped(key, _ASIDE) for key in variant.benchmark.aside)


def _is_wandb(word: str) -> bool:
    return word.startswith("-") and "wandb" in word.partition("=")[0]
