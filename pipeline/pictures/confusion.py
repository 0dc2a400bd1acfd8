"""Draw confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock.pipeline.pictures.page import Picture
from penstock.pipeline.pictures.picture import blank_figure, points_of, rendered


def draw_confusion(matrix: ArrayLike, names: Sequence[str]) -> Picture:
    """Draw a confusion matrix, coloured by the share of each true class."""
    counts = np.asarray(matrix)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    many = len(names)
    side = min(max(480, 240 + 44 * many), 1400)
    figure = blank_figure(side, side, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    letters = points_of(min(13, max(6, 1000 / many)))
    if many <= 100:
        axes.set_xticks(range(many), names, rotation=90, fontsize=letters)
        axes.set_yticks(range(many), names, fontsize=letters)
    if many <= 20:
        look: Any = {"ha": "center", "va": "center", "fontsize": points_of(11)}
        for (row, column), share in np.ndenumerate(shares):
            text = f"{share:.0%}\n{counts[row, column]:,}"
            axes.text(column, row, text, color="white" if share > 0.5 else "black", **look)
    axes.set(xlabel="predicted", ylabel="true", title="share of each true class, and counts")
    return rendered(figure)
