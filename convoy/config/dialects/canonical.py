"""The canonical dialect: the option table itself, and what the PyTorch program called things."""

from collections.abc import Iterator
from functools import cache

from convoy.config.dialects.dialect import Dialect, Flag
from convoy.config.dialects.speech import Speech
from convoy.config.fields import Option
from convoy.config.schema import option_table
from convoy.config.values import WrongType


@cache
def canonical() -> Dialect:
    """Every option under its own name, `--no-…` for the boolean ones, and older spellings."""
    flags = tuple(flag for row in option_table().values() for flag in _flags(row))
    return Dialect("convoy", (*flags, *_OLDER), joins=(_recompute,), says=SAYS)


def _flags(row: Option) -> Iterator[Flag]:
    for spelling in (row.flag, *row.declared.also):
        if row.kind.base is bool:
            yield Flag(spelling, row.name, means=True)
            yield Flag("--no-" + spelling.removeprefix("--"), row.name, means=False)
        else:
            read, bare = _READERS.get(row.name), _BARE.get(row.name)
            yield Flag(spelling, row.name, read=read, bare=bare)


def _location(words: list[str]) -> str:
    """The device was an IPU there."""
    return "device" if words[0].lower() == "ipu" else words[0]


def _recompute_mode(words: list[str]) -> str:
    if words[0] not in ("none", "auto", "manual"):
        raise WrongType(f"is none, auto or manual, got {words[0]!r}")
    return words[0]


def _recompute(speech: Speech) -> None:
    """Several stages recompute in any mode; `auto` and `manual` make a single one do so too."""
    mode = speech.take("recompute_mode")
    if mode is not None:
        speech.fill("enable_recompute", None if mode.value == "none" else True, mode)
    if mode is not None and mode.value == "none":
        speech.note(mode, "the number of stages decides")


_READERS = {"normalization_location": _location}
_BARE = {"pretrained": "published"}
SAYS = {
    "--recompute-mode": (
        "`--enable-recompute` for auto and manual; none leaves it to the number of stages"
    ),
}
_OLDER = (
    Flag(
        "--recompute-mode",
        "recompute_mode",
        read=_recompute_mode,
        older=True,
    ),
    Flag("--disable-stable-batchnorm", "stable_norm", means=False, older=True),
)
