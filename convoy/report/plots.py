"""Plots with matplotlib, which the extra `plot` installs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convoy.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Columns = Mapping[str, npt.NDArray[np.float64]]


def draw_curves(training: Columns, validation: Columns) -> "Figure":
    """Draw loss and accuracy over epochs, of training and validation, side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: install the extra `plot`") from error
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = zip(figure.subplots(1, 2), ("loss", "accuracy"), ("loss", "top1"), strict=True)
    for axes, trained, validated in panels:
        axes.set(xlabel="epoch", ylabel=trained)
        axes.grid(alpha=0.3)
        if trained in training:
            axes.plot(training["epoch"], training[trained], label="training")
        if validated in validation:
            axes.plot(validation["epoch"], validation[validated], "o-", label="validation")
        if axes.has_data():
            axes.legend()
    return figure
