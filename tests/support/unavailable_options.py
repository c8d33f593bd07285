"""For tests: options that work nowhere, on CUDA only, or not with every value yet."""

from dataclasses import dataclass, replace

from convoy.config.option import Option, option, section_options
from convoy.config.schema import option_table


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """A section with an option of every other."""

    plain: int = option(1, "Plain.")
    graphs: bool = option(False, "Record once.", cuda_effect="replays kernels in one go")
    tiles: int = option(6, "Tiles.", no_counterpart="no device here has tiles.")
    shape: str = option(
        "round", "Shape.", choices=("round", "flat", "odd"), available_values=("round",)
    )
    switch: bool = option(False, "Switch.", available_values=(False,))
    length: int | None = option(None, "Length.", at_least=0, available_values=(None, 5))
    splits: tuple[str, ...] = option((), "Splits.", choices=("a", "b"), available_values=((),))
    driver: str | None = option(None, "Who drives.", choices=("ann", "bob"))
    ready: str = option("a", "Ready.", choices=("a", "b"), available_values=("a", "b"))


def pretended_rows() -> dict[str, Option]:
    """By name."""
    return {row.name: row for row in section_options("pretended", Pretended)}


def pretended_table() -> dict[str, Option]:
    """The real table in which four options are of another other."""
    rows = pretended_rows()
    changes = {"lr": "graphs", "seed": "tiles", "pipeline_schedule": "shape", "samples": "length"}
    return option_table() | {
        name: _mixed(option_table()[name], rows[kind]) for name, kind in changes.items()
    }


def _mixed(row: Option, other: Option) -> Option:
    """One option with the support of another; of its choices one is missing."""
    ready = row.limit.choices[1:] or other.available_values
    return replace(
        row,
        cuda_effect=other.cuda_effect,
        no_counterpart=other.no_counterpart,
        available_values=ready if other.available_values else None,
    )
