"""What the tables of the dialects share: flags that are the same as here, and readers of values."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convoy.config.flags import Flag, canonical
from convoy.config.option import WrongType


def same(*spellings: str) -> Iterator[Flag]:
    """Flags with the spelling and the meaning they have in the canonical dialect."""
    return (canonical().by_spelling[spelling] for spelling in spellings)


def lower_case(words: list[str]) -> str:
    """Case does not matter there."""
    return words[0].lower()


def one_of(
    values: Mapping[str, Any], normalize: Callable[[str], str] = str
) -> Callable[[list[str]], Any]:
    """A reader of a word out of a closed list."""

    def read(words: list[str]) -> Any:
        word = normalize(words[0])
        if word not in values:
            raise WrongType(f"is one of {', '.join(values)}, got {words[0]!r}")
        return values[word]

    return read
