"""The words of a launcher: where they end, each option with its values, and what is wrong."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.config.commands.launcher_tables import LauncherOption, LauncherTable, begins_program
from convoy.config.problems import Problem
from convoy.config.user_text import printable
from convoy.registry import near_names


@dataclass(frozen=True)
class TypedOption:
    """An option as typed: its words, and the values among them."""

    option: LauncherOption
    words: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def spelling(self) -> str:
        return self.words[0].partition("=")[0]


@dataclass(frozen=True)
class Own:
    """The words that are the launcher's own: their number and what they are."""

    length: int
    typed: list[TypedOption]
    problems: list[Problem]


def own_words(table: LauncherTable, words: Sequence[str]) -> Own:
    """A launcher's words end where a word is neither an option nor a value of one."""
    rest = deque(words)
    typed: list[TypedOption] = []
    problems: list[Problem] = []
    while rest and rest[0].startswith("-"):
        if rest[0] == "--":
            rest.popleft()
            break
        word = rest.popleft()
        option = table.find(word.partition("=")[0])
        if option is None:
            problems.append(_unknown(word.partition("=")[0], table))
            _skip_values(word, rest)
            continue
        one = _with_values(word, option, table, rest)
        typed.append(one)
        problems.extend(_wrong_number_of_values(one))
    return Own(len(words) - len(rest), typed, problems)


def _with_values(
    word: str, option: LauncherOption, table: LauncherTable, rest: deque[str]
) -> TypedOption:
    _, equals, value = word.partition("=")
    if equals:
        return TypedOption(option, (word,), (value,))
    values: list[str] = []
    while len(values) < option.values and rest and _is_value(rest[0], option, table):
        values.append(rest.popleft())
    return TypedOption(option, (word, *values), tuple(values))


def _is_value(word: str, option: LauncherOption, table: LauncherTable) -> bool:
    if begins_program(word):
        return False
    if option.to == "mpirun":  # options for another program: only our own end them
        return table.find(word.partition("=")[0]) is None
    if option.may_stand_alone and word.lower() not in ("0", "1", "yes", "no", "on", "off"):
        return False
    return not word.startswith("-")


def _skip_values(word: str, rest: deque[str]) -> None:
    """Pass over what may belong to an unknown option, so that the rest is still heard."""
    if "=" not in word:
        while rest and not rest[0].startswith("-") and not begins_program(rest[0]):
            rest.popleft()


def _wrong_number_of_values(one: TypedOption) -> Iterator[Problem]:
    wanted, got = one.option.values, len(one.values)
    if wanted == 0 and got > 0:
        yield Problem(one.spelling, "takes no value")
    elif got < wanted and not (got == 0 and one.option.may_stand_alone):
        needed = "a value" if wanted == 1 else f"{wanted} values"
        example = " N" if one.option.limit else " VALUE" * wanted
        yield Problem(one.spelling, f"needs {needed}, as in `{one.spelling}{example}`")


def _unknown(spelling: str, table: LauncherTable) -> Problem:
    near = near_names(spelling, table.spellings)
    hint = f"did you mean {', '.join(near)}? Otherwise leave it out" if near else "leave it out"
    return Problem("", f"unknown option {printable(spelling)} of {table.name}; {hint}")
