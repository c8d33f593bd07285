"""Named entries. An unknown name raises an error that suggests similar names."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

from convoy.errors import ConfigError

T = TypeVar("T")


def near_names(name: str, known: Iterable[str], max_names: int = 3) -> list[str]:
    """Return the known names similar to this one, the closest first."""
    by_lower = {entry.lower(): entry for entry in known}
    matches = get_close_matches(name.lower(), by_lower, n=max_names, cutoff=0.5)
    return [by_lower[match] for match in matches]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean a, b?`, or `choose from …` if none is similar."""
    names = sorted(known)
    near = near_names(name, names)
    if near:
        return f"did you mean {', '.join(near)}?"
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"choose from {listed}"


class Registry(dict[str, T]):
    """A fixed set of named entries of one kind, and those that users register.

    Iteration yields the fixed ones only.
    """

    def __init__(self, kind: str, entries: dict[str, T]) -> None:
        super().__init__(entries)
        self.kind = kind
        self._registered: dict[str, T] = {}

    def register(self, name: str, entry: T) -> None:
        self._registered[name] = entry

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._registered

    def __missing__(self, name: str) -> T:
        if name in self._registered:
            return self._registered[name]
        raise ConfigError(f"unknown {self.kind} {name!r}; {suggest(name, self)}")
