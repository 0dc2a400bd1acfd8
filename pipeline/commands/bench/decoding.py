"""Find how a configuration decodes, and the least that its work takes: the floor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import (
    Decoder,
    Storage,
    Transform,
    abilities_of,
)
from penstock.core.sample import Record
from penstock.pipeline.commands.bench.subject import Round
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.pixels import is_pixels
from penstock.transforms.decode.image.turbojpeg import region_decoder


@dataclass(frozen=True, slots=True)
class Decoding:
    """The way in which records become arrays.

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


def look_at(decoder: Decoder, transform: Transform, records: Sequence[Record]) -> Decoding:
    """Find out from the headers of some records."""
    if not isinstance(decoder, ImageDecoder):
        return Decoding("as the decoder does it")
    reason: str | None = "the transform is not a stack"
    if isinstance(transform, Stack):
        reason = transform.whole_because()
    if reason is not None:
        return Decoding(f"images whole, {reason}", parts=0.0)
    reasons: Counter[str | None] = Counter()
    tiled = 0
    for record in records:
        try:
            image = record.fields["image"]
            reasons[decoder.whole_because(image)] += 1
            tiled += not is_pixels(image) and _is_tiled(bytes(image))
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
        by_choice=decoder.region == "whole",
        tiled=tiled / max(len(records), 1),
    )


def _is_tiled(data: bytes) -> bool:
    """Whether a JPEG has restart markers: a DRI segment (ITU-T T.81, B.2.4.4) with a length."""
    at = data.find(b"\xff\xdd\x00\x04", 0, 65536)
    return at >= 0 and data[at + 4 : at + 6] != b"\x00\x00"


def some_records(storage: Storage, count: int) -> tuple[NDArray[np.int64], list[Record]]:
    """Read evenly spaced records: the indices of all, int64 [n], and those that can be read."""
    indices = np.unique(np.linspace(0, len(storage) - 1, count).astype(np.int64))
    return indices, [r for r in storage.read(indices) if isinstance(r, Record)]


class Floor:
    """Repeats the unavoidable work on as many threads as there are workers.

    Args:
        text: What is done, as the user is told.
        works: Each does the work of so many samples: pairs of a function and a number.
        threads: How many threads share them.
    """

    def __init__(
        self, text: str, works: Sequence[tuple[Callable[[], Any], int]], threads: int
    ) -> None:
        self.text = f"{text}, {threads} thread{'s' if threads > 1 else ''}"
        self._works = works
        self._threads = threads

    def round(self, seconds: float) -> Round:
        """Do it again and again."""
        start = time.perf_counter()
        deadline = start + seconds

        def repeat(first: int) -> int:
            samples, at = 0, first
            while time.perf_counter() < deadline or not samples:
                work, count = self._works[at % len(self._works)]
                work()
                samples, at = samples + count, at + self._threads
            return samples

        with ThreadPoolExecutor(self._threads, "penstock-floor") as pool:
            samples = sum(pool.map(repeat, range(self._threads)))
        return Round(samples, time.perf_counter() - start)


def floor_of(
    decoder: Decoder | None, records: Sequence[Record], batch: Any, threads: int
) -> Floor | None:
    """The floor of a data set.

    Args:
        decoder: Of images: then decoding them whole is the floor.
        records: Some records, held in memory.
        batch: A host batch; where nothing is decoded, copying one is the floor.
        threads: How many threads do it.

    Returns:
        None where there is nothing to compare with.
    """
    decode = abilities_of(decoder, Decoder).whole_image
    if isinstance(decoder, ImageDecoder):
        decode = decoder.decode
    if decode is not None:
        works = [work for record in records if (work := _decoding(decode, record)) is not None]
        return Floor("the same files only decoded whole", works, threads) if works else None
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    if not tensors:
        return None

    def copy() -> None:
        for tensor in tensors:
            tensor.clone()

    works = [(copy, len(batch["valid"]))]
    return Floor("batches of this size only copied", works, threads)


def _decoding(decode: Any, record: Record) -> tuple[Callable[[], Any], int] | None:
    """The decoding of a record, if it can be decoded."""
    try:
        data = bytes(record.fields.get("image"))  # type: ignore[arg-type]
        decode(data)
    except (ValueError, TypeError):
        return None
    return (lambda: decode(data)), 1
