"""Options that are unavailable, available only on CUDA, or available only with some values."""

from dataclasses import dataclass, replace

from convoy.config.option import Option, option, section_options
from convoy.config.schema import option_table


@dataclass(frozen=True, kw_only=True)
class ExampleSection:
    """A section with an option of every kind of support."""

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


def example_options() -> dict[str, Option]:
    """The options of the section, by name."""
    return {row.name: row for row in section_options("example", ExampleSection)}


def table_with_unavailable_options() -> dict[str, Option]:
    """The option table, with four options changed to other kinds of support."""
    rows = example_options()
    changes = {"lr": "graphs", "seed": "tiles", "pipeline_schedule": "shape", "samples": "length"}
    return option_table() | {
        name: _with_support_of(option_table()[name], rows[kind]) for name, kind in changes.items()
    }


def _with_support_of(row: Option, other: Option) -> Option:
    """An option with the support of another; its first choice is unavailable."""
    available = row.limit.choices[1:] or other.available_values
    return replace(
        row,
        cuda_effect=other.cuda_effect,
        no_counterpart=other.no_counterpart,
        available_values=available if other.available_values else None,
    )
