"""Launchers → a Launch: how many hosts, instances and replicas; the rest dropped with reasons."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.config.commands.hosts import Places, read_hostfile, read_hosts
from convoy.config.commands.launch import Given, Heard, Launch, together
from convoy.config.commands.launcher_tables import (
    MPIRUN,
    POPRUN,
    LauncherTable,
    is_variable,
    launcher,
)
from convoy.config.commands.launcher_words import TypedOption, own_words
from convoy.config.fields import Limit
from convoy.config.problems import Problem
from convoy.config.user_text import shown
from convoy.config.values import Kind, WrongType

_INHERITED = "the run has every variable of this shell"
_COUNTED = "poprun's own options say how many processes there are, and where"


@dataclass(frozen=True)
class Launcher:
    """A program that starts programs, as typed, with the words of its own."""

    name: str
    words: tuple[str, ...] = ()

    @property
    def table(self) -> LauncherTable:
        table = launcher(self.name)
        assert table is not None, "a command is split at launchers that are known"
        return table


def read_launchers(launchers: Sequence[Launcher]) -> tuple[Launch, list[Problem]]:
    """What the launchers of a command ask for; only one of them may start processes."""
    starters = [one.name for one in launchers if one.table.starts_processes]
    problems = []
    if len(starters) > 1:
        names = " and ".join(starters)
        problems.append(Problem("", f"{names} cannot be nested; leave out all but one"))
    heard = [_listen(one) for one in launchers]
    return together(heard), [*problems, *(problem for one in heard for problem in one.problems)]


def _listen(one: Launcher) -> Heard:
    table = one.table
    heard = Heard(table.name)
    own = own_words(table, one.words)
    heard.problems.extend(own.problems)
    for typed in own.typed:
        try:
            _hear(typed, heard)
        except WrongType as wrong:
            heard.problems.append(Problem(typed.spelling, str(wrong)))
    _settle_places(heard, table)
    if table.why and not heard.given.keys() - {"verbosity"}:
        untold = [typed for typed in own.typed if not typed.option.why and not typed.option.to]
        heard.drop([one.name, *(word for typed in untold for word in typed.words)], table.why)
    if table is POPRUN:
        heard.problems.extend(_uneven(heard.given))
    return heard


def _hear(typed: TypedOption, heard: Heard) -> None:
    """Give what one option asks for, or drop it with its reason."""
    if typed.option.why:
        heard.drop(typed.words, typed.option.why)
    if not typed.option.to or len(typed.values) != typed.option.values:
        return
    match typed.option.to:
        case "hosts":
            heard.give("places", read_hosts(typed.values[0]))
        case "hostfile":
            heard.give("places", read_hostfile(typed.values[0]))
        case "export":
            _export(typed, heard)
        case "mpirun":
            _hear_arguments_of_mpirun(typed, heard)
        case name:
            heard.give(name, _value(typed))


def _value(typed: TypedOption) -> Any:
    if not typed.values:
        return typed.option.means
    if typed.option.limit is None:
        return Kind(str).read([typed.values[0]])
    return _within(typed.option.limit, Kind(int).read([typed.values[0]]))


def _within(limit: Limit, number: int) -> int:
    if (text := limit.problem(number)) is not None:
        raise WrongType(text)
    return number


def _settle_places(heard: Heard, table: LauncherTable) -> None:
    """Hosts are counted; mpirun starts a process in each place unless it was told a number."""
    if "places" not in heard.given:
        return
    places: Places = heard.given.pop("places").value
    heard.give("hosts", len(places))
    if table is MPIRUN and "instances" not in heard.given:
        heard.give("instances", places.total())


def _export(typed: TypedOption, heard: Heard) -> None:
    name, equals, value = typed.values[0].partition("=")
    if not is_variable(name):
        raise WrongType(f"needs NAME or NAME=VALUE, got {shown(typed.values[0])}")
    if equals:
        heard.environment[name] = value
    else:
        heard.drop(typed.words, _INHERITED)


def _hear_arguments_of_mpirun(typed: TypedOption, heard: Heard) -> None:
    """The text that poprun hands on: its variables are taken, the rest asks for nothing."""
    try:
        words = shlex.split(typed.values[0])
    except ValueError as error:
        raise WrongType(f"cannot be split: {str(error).lower()}") from None
    own = own_words(MPIRUN, words)
    heard.problems.extend(own.problems)
    for inner in own.typed:
        if inner.option.to in ("instances", "hosts", "hostfile"):
            heard.drop(inner.words, _COUNTED)
        else:
            _hear(inner, heard)
    if own.length < len(words):
        raise WrongType(f"holds the unexpected word {shown(words[own.length])}")


def _uneven(given: Given) -> Iterator[Problem]:
    """Replicas are shared out evenly to instances, and instances to hosts."""
    replicas, instances, hosts = (
        given[name].value if name in given else 1 for name in ("replicas", "instances", "hosts")
    )
    if replicas % instances:
        typed = replicas if "replicas" in given else "(not given, so 1)"
        yield Problem(
            "--num-replicas",
            f"{typed} is not a multiple of --num-instances {instances}; "
            f"use --num-replicas {_next_multiple(replicas, instances)}",
        )
    if "instances" in given and instances % hosts:
        yield Problem(
            "--num-instances",
            f"{instances} cannot be shared out evenly to {hosts} hosts; "
            f"use --num-instances {_next_multiple(instances, hosts)}",
        )


def _next_multiple(number: int, of: int) -> int:
    return -(-number // of) * of
