"""Names → things. A wrong name is answered with the near ones."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from convoy.errors import ConfigError

T = TypeVar("T")


def near_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look like this one, the nearest first."""
    by_lower = {one.lower(): one for one in known}
    matches = get_close_matches(name.lower(), by_lower, n=most, cutoff=0.5)
    return [by_lower[match] for match in matches]


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean a, b?`, or the whole list when nothing is near and the list is short."""
    names = sorted(known)
    near = near_names(name, names)
    if near:
        return f"did you mean {', '.join(near)}?"
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"known are {listed}"


class Registry(Generic[T]):
    """A closed set of named entries of one kind."""

    def __init__(self, kind: str, entries: dict[str, T]) -> None:
        self.kind = kind
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} {name!r}; {suggest(name, self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
