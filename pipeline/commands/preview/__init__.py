"""``penstock preview``: pictures of what the model gets, beside the originals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from penstock.core.registry import register


@register("settings", "preview")
@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSettings:
    """What to draw, and where.

    Args:
        path: The PNG to write; a page of the same name that ends in ``.html`` is written beside
            it and holds the same pictures and the config.
        split: The split to draw from.
        samples: Number of samples, spread over the epoch, one a row.
        epochs: Number of epochs: the same records at the same positions, drawn again.
        size: The longer side of a picture, in pixels.
        records: Records whose headers and labels are looked at for the histograms.
        open: Show the page in the browser.
        overwrite: Write over files that are no earlier preview.
    """

    path: str = "preview.png"
    split: Literal["train", "val"] = "train"
    samples: Annotated[int, Ge(1)] = 8
    epochs: Annotated[int, Ge(1)] = 3
    size: Annotated[int, Ge(32)] = 256
    records: Annotated[int, Ge(1)] = 512
    open: bool = False
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Draw a row for each sample: the original, then what each epoch makes of it."""
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.commands.preview.show import show

    return show(config, build_settings(config["preview"]))
