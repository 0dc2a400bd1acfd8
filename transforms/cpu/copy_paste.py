"""Paste objects of another image into this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.cpu.targets import BoxSettings, check_together, left_over, rows_of

_Place = tuple[slice, slice]


@register("transform", "copy_paste")
class CopyPaste:
    """Paste random objects of another sample at random places.

    Source: Ghiasi et al., "Simple copy-paste is a strong data augmentation method for instance
    segmentation", CVPR 2021, without its rescaling, which is a separate step. An object is the
    part of its box that ``mask`` labels with its class. Without such pixels it is the whole box.

    A partly hidden object gets the box of its visible pixels. Objects without visible pixels or
    below the limits of ``augment.boxes`` are dropped, with their rows in every ``box_*`` field.
    The visibility of an object is the visible share of its pixels. Hidden ``keypoints`` get
    visibility 1. Pasted objects bring no keypoints, and ``label`` stays the sample's own.

    Args:
        p: Probability of pasting.
        share: Probability that each object of the other sample is pasted.
        max_objects: Maximum number of pasted objects.
        mask_offset: Mask value of an object minus its ``box_labels`` value: 1 if 0 is background,
            0 if masks and boxes number classes alike.
        box_limits: Limits below which boxes are dropped.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.5,
        share: Annotated[float, Ge(0), Le(1)] = 0.5,
        max_objects: Annotated[int, Ge(1)] = 20,
        mask_offset: int = 1,
        box_limits: BoxSettings | None = None,
    ) -> None:
        self._p = p
        self._share = share
        self._max_objects = max_objects
        self._mask_offset = mask_offset
        self._limits = box_limits

    def partners(self, rng: np.random.Generator) -> int:
        """Return 1 to paste, or 0."""
        return int(rng.random() < self._p)

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample:
        """Paste objects of a partner with the same fields and channels, if there is one."""
        if not partners:
            return sample
        (other,) = partners
        fields = ["image", "boxes", "box_labels", *(["mask"] if "mask" in sample else [])]
        check_together("copy_paste", [sample, other], fields)
        chosen = np.flatnonzero(rng.random(len(other["boxes"])) < self._share)
        chosen = chosen[: self._max_objects]
        places = rng.random((len(chosen), 2)).tolist()
        pasted = [
            found
            for row, place in zip(chosen.tolist(), places, strict=True)
            if (found := self._object(other, row, place, sample["image"].shape)) is not None
        ]
        if not pasted:
            return sample
        image = sample["image"].copy()
        mask = sample["mask"].copy() if "mask" in sample else None
        # Number of the topmost pasted object at each pixel; 0 if none.
        cover = np.zeros(image.shape[:2], np.int64)
        for number, piece in enumerate(pasted, start=1):
            there, here, source = piece.places(image.shape)
            pixels = piece.pixels[here]
            image[there][pixels] = other["image"][source][pixels]
            if mask is not None:
                mask[there][pixels] = other["mask"][source][pixels]
            cover[there][pixels] = number
        objects = [self._own_object(sample, row) for row in range(len(sample["boxes"]))]
        seen = [each.seen(cover, 0) for each in objects]
        seen += [piece.seen(cover, number) for number, piece in enumerate(pasted, start=1)]
        boxes = np.array([box for box, _ in seen], np.float32).reshape(-1, 4)
        kept = left_over(boxes, np.zeros(len(boxes)), self._limits)
        least = 0.0 if self._limits is None else self._limits.min_visibility
        sizes = [least * each.pixels.sum() for each in (*objects, *pasted)]
        kept &= np.array([n > 0 and n >= size for (_, n), size in zip(seen, sizes, strict=True)])
        rows = [np.arange(len(sample["boxes"])), np.array([piece.row for piece in pasted])]
        new = {**sample, "image": image, "boxes": boxes[kept]}
        new |= {k: values[kept] for k, values in rows_of([sample, other], rows).items()}
        if mask is not None:
            new["mask"] = mask
        if "keypoints" in sample:
            new["keypoints"] = _hidden_under(cover > 0, sample["keypoints"])
        return new

    def _object(
        self, sample: Sample, row: int, place: list[float], shape: tuple[int, ...]
    ) -> _Object | None:
        """Return an object of the other sample, moved to its new place; None if it is empty."""
        piece = self._own_object(sample, row)
        if not piece.pixels.size:
            return None
        height, width = piece.pixels.shape
        # A small object stays inside the image; a larger one covers all of it.
        top = _between(place[0], shape[0] - height)
        left = _between(place[1], shape[1] - width)
        piece.moved = (top - piece.top, left - piece.left)
        return piece

    def _own_object(self, sample: Sample, row: int) -> _Object:
        """Return an object of a sample at its own place."""
        box = np.asarray(sample["boxes"][row], np.float64)
        height, width = sample["image"].shape[:2]
        left, top = (max(int(edge), 0) for edge in np.floor(box[:2]))
        right = max(min(int(np.ceil(box[2])), width), left)
        bottom = max(min(int(np.ceil(box[3])), height), top)
        pixels = np.ones((bottom - top, right - left), np.bool_)
        if "mask" in sample:
            value = int(sample["box_labels"][row]) + self._mask_offset
            own = sample["mask"][top:bottom, left:right] == value
            pixels = own if own.any() else pixels
        return _Object(row, top, left, pixels, box)


@dataclass(slots=True)
class _Object:
    """The pixels of an object of a sample.

    Attributes:
        row: Row of its box.
        top: First row of `pixels` in the image.
        left: First column of `pixels` in the image.
        pixels: Mask of the object, bool [h, w].
        box: xyxy in pixels, float64 [4].
        moved: Rows and columns by which pasting moves it.
    """

    row: int
    top: int
    left: int
    pixels: NDArray[np.bool_]
    box: NDArray[np.float64]
    moved: tuple[int, int] = (0, 0)

    def places(self, shape: tuple[int, ...]) -> tuple[_Place, _Place, _Place]:
        """Return its slices in the target image, in `pixels`, and in its own image."""
        there, here, source = [], [], []
        for first, move, length, limit in zip(
            (self.top, self.left), self.moved, self.pixels.shape, shape[:2], strict=True
        ):
            start = max(first + move, 0)
            stop = max(min(first + move + length, limit), start)
            there.append(slice(start, stop))
            source.append(slice(start - move, stop - move))
            here.append(slice(start - move - first, stop - move - first))
        return (there[0], there[1]), (here[0], here[1]), (source[0], source[1])

    def seen(self, cover: NDArray[np.int64], number: int) -> tuple[NDArray[np.float64], int]:
        """Return the box (xyxy) and the number of its visible pixels; shrink the box to these.

        Args:
            cover: Number of the topmost pasted object at each pixel, int64 [H, W].
            number: Its own number; 0 for an object of the image itself.
        """
        (there_y, there_x), here, _ = self.places(cover.shape)
        seen = self.pixels[here] & (cover[there_y, there_x] == number)
        box = self.box + [self.moved[1], self.moved[0]] * 2
        count = int(seen.sum())
        whole = seen.shape == self.pixels.shape and count == self.pixels.sum()
        if whole or not count:
            return box, count
        rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
        first = np.array([there_x.start + columns[0], there_y.start + rows[0]])
        last = np.array([there_x.start + columns[-1] + 1, there_y.start + rows[-1] + 1])
        box = np.concatenate([np.maximum(box[:2], first), np.minimum(box[2:], last)])
        return box, count


def _between(share: float, room: int) -> int:
    """Return an integer from 0 to `room`, both included; `room` may be negative."""
    place = min(int(share * (abs(room) + 1)), abs(room))
    return place if room >= 0 else -place


def _hidden_under(covered: NDArray[np.bool_], keypoints: Any) -> NDArray[np.float32]:
    """Lower the visibility of covered keypoints from 2 to 1."""
    points = np.array(keypoints, np.float32)
    at = np.floor(points[:, :2] + 0.5).astype(np.int64)
    inside = (at >= 0).all(1) & (at < [covered.shape[1], covered.shape[0]]).all(1)
    for row in np.flatnonzero(inside).tolist():
        if covered[at[row, 1], at[row, 0]]:
            points[row, 2] = min(points[row, 2], 1)
    return points
