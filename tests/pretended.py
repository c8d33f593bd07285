"""For tests: options that work nowhere, on CUDA only, or not with every value yet."""

from dataclasses import dataclass, replace

from convoy.config.fields import (
    Declaration,
    Option,
    at_least,
    cuda_only,
    no_counterpart,
    not_yet,
    one_of,
    option,
    options_of,
)
from convoy.config.schema import option_table


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """A section with an option of every kind."""

    plain: int = option(1, "Plain.")
    graphs: bool = cuda_only(option(False, "Record once."), "replays kernels in one go")
    tiles: int = no_counterpart(option(6, "Tiles."), "no device here has tiles.")
    shape: str = not_yet(option("round", "Shape.", one_of("round", "flat", "odd")), "round")
    switch: bool = not_yet(option(False, "Switch."))
    length: int | None = not_yet(option(None, "Length.", at_least(0)), None, 5)
    splits: tuple[str, ...] = not_yet(option((), "Splits.", one_of("a", "b")))
    driver: str | None = option(None, "Who drives.", one_of("ann", "bob"))
    ready: str = not_yet(option("a", "Ready.", one_of("a", "b")), "a", "b")


def pretended_rows() -> dict[str, Option]:
    """By name."""
    return {row.name: row for row in options_of("pretended", Pretended)}


def pretended_table() -> dict[str, Option]:
    """The real table in which four options are of another kind."""
    rows = pretended_rows()
    changes = {"lr": "graphs", "seed": "tiles", "pipeline_schedule": "shape", "samples": "length"}
    return option_table() | {
        name: replace(option_table()[name], declared=_mixed(option_table()[name], rows[kind]))
        for name, kind in changes.items()
    }


def _mixed(row: Option, other: Option) -> Declaration:
    """The declaration of one option with the reach of another; of its choices one is missing."""
    own, kind = row.declared, other.declared
    ready = own.limit.choices[1:] or kind.ready
    return replace(own, reach=kind.reach, why=kind.why, ready=ready if kind.ready else None)
