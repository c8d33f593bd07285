"""For tests: options that work nowhere, on CUDA only, or not with every value yet."""

from dataclasses import dataclass, replace

from convoy.config.option import Declaration, Option, option, options_of
from convoy.config.schema import option_table


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """A section with an option of every kind."""

    plain: int = option(1, "Plain.")
    graphs: bool = option(False, "Record once.", cuda_only="replays kernels in one go")
    tiles: int = option(6, "Tiles.", no_counterpart="no device here has tiles.")
    shape: str = option("round", "Shape.", choices=("round", "flat", "odd"), ready=("round",))
    switch: bool = option(False, "Switch.", ready=(False,))
    length: int | None = option(None, "Length.", at_least=0, ready=(None, 5))
    splits: tuple[str, ...] = option((), "Splits.", choices=("a", "b"), ready=((),))
    driver: str | None = option(None, "Who drives.", choices=("ann", "bob"))
    ready: str = option("a", "Ready.", choices=("a", "b"), ready=("a", "b"))


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
    """The declaration of one option with the support of another; of its choices one is missing."""
    own, kind = row.declared, other.declared
    ready = own.limit.choices[1:] or kind.ready
    return replace(
        own,
        cuda_only=kind.cuda_only,
        no_counterpart=kind.no_counterpart,
        ready=ready if kind.ready else None,
    )
