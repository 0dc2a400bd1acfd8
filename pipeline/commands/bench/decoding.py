"""Which way of decoding is taken, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.sample import Record
from transforms.formats.turbojpeg import region_decoder


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the records of a data set become arrays.

    Attributes:
        text: What the user is told.
        parts: Share of the images of which only a part is decoded; None where the decoder knows
            of no parts.
        crops_first: Whether the augmentation begins with a crop.
        by_choice: Whether images are decoded whole because the config says so.
        tiled: Share of the images that are tiled JPEG.
    """

    text: str
    parts: float | None = None
    crops_first: bool = False
    by_choice: bool = False
    tiled: float = 0.0


def look_at(decoder: Any, transform: Any, records: Sequence[Record]) -> Decoding:
    """Find out from the headers of some records."""
    if not hasattr(decoder, "whole_because"):
        return Decoding("as the decoder does it")
    reason = getattr(transform, "whole_because", lambda: "the transform is not a stack")()
    if reason is not None:
        return Decoding(f"images whole, {reason}", parts=0.0)
    reasons: Counter[str | None] = Counter()
    tiled = 0
    for record in records:
        try:
            image = record.fields["image"]
            reasons[decoder.whole_because(image)] += 1
            tiled += not hasattr(image, "dtype") and _is_tiled(bytes(image))
        except (ValueError, KeyError):
            reasons["damaged"] += 1
    parts = reasons.pop(None, 0)
    text = f"of {parts} of {len(records)} images only what the first crop needs"
    if parts > tiled and region_decoder() is None:
        text += " and what lies above and beside it, as there is no TurboJPEG 3 (see doctor)"
    whole = ", ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
    return Decoding(
        f"{text}; whole: {whole}" if whole else text,
        parts=parts / max(len(records), 1),
        crops_first=True,
        by_choice=getattr(decoder, "region", "") == "whole",
        tiled=tiled / max(len(records), 1),
    )


def _is_tiled(data: bytes) -> bool:
    """Whether a JPEG has restart markers: a DRI segment (ITU-T T.81, B.2.4.4) with a length."""
    at = data.find(b"\xff\xdd\x00\x04", 0, 65536)
    return at >= 0 and data[at + 4 : at + 6] != b"\x00\x00"


def some_records(dataset: Any, count: int) -> tuple[Any, list[Record]]:
    """Evenly spaced records of a data set's storage: their indices, int64 [n], and the good."""
    count = min(count, len(dataset))
    indices = np.unique(np.linspace(0, len(dataset) - 1, max(count, 1)).astype(np.int64))
    return indices, [r for r in dataset.storage.read(indices) if isinstance(r, Record)]
