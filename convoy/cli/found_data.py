"""A configuration, with what only the files of its data set can tell."""

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from convoy.cli.saying import note
from convoy.config.catalog import DATA
from convoy.config.layers import Setting
from convoy.config.resolve import Resolved
from convoy.config.schema import build_config
from convoy.report.bar import make_bar


@dataclass(frozen=True)
class WithData:
    """The configuration, and how many training samples there are; None: as many as usual."""

    resolved: Resolved
    samples: int | None = None


def with_found_data(resolved: Resolved, quiet: bool = False) -> WithData:
    """The classes of a folder become those of the network, unless somebody has set them."""
    config = resolved.config.data
    if not DATA[config.data].any_classes or config.data_dir is None:
        return WithData(resolved)
    from convoy.assemble.data_folder import look_into, look_quietly

    folder = Path(config.data_dir)
    if quiet:
        found = look_quietly(folder)
    else:
        with closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing:
            found = look_into(folder, note, indexing)
    if config.num_classes is not None:
        return WithData(resolved, found.train)
    classes = Setting(found.classes, f"data in {config.data_dir}")
    settings = {**resolved.settings, "num_classes": classes}
    values = {name: one.value for name, one in settings.items()}
    return WithData(Resolved(build_config(values), settings), found.train)
