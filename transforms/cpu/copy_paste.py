"""Objects of another image, pasted into this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from datasets.sample import Sample
from pipeline.registry import register
from transforms.box_rows import left_over, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from transforms.target_settings import BoxSettings


@register("transform", "copy_paste")
class CopyPaste:
    """Pastes some of another sample's objects at random places of this one.

    Ghiasi et al., "Simple copy-paste is a strong data augmentation method for instance
    segmentation", CVPR 2021, without its rescaling, which is a step of its own. An object is the
    pixels of its box that the ``mask`` gives its class; without a mask, or where that has none of
    them, it is all pixels of its box.

    An object that is covered in part gets the box of what is left of it; one that leaves the
    image, is covered wholly, or falls below the limits of ``augment.boxes`` is dropped with its
    rows of every ``box_*`` field (its visibility is the share of its pixels that is left).
    ``keypoints`` that are covered get visibility 1, for hidden; those of the other sample belong
    to no box and stay where they are. ``label`` is the sample's own.

    Args:
        p: Probability of pasting.
        share: Probability of each object of the other sample to be pasted.
        max_objects: The most objects to be pasted.
        mask_offset: A pixel of an object has its ``box_labels`` value plus this in the mask: 1
            where 0 is background, 0 where masks and boxes number classes alike.
        box_limits: Which boxes are dropped.
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
        """One, or none where nothing is pasted."""
        return int(rng.random() < self._p)

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample:
        """Paste objects.

        Args:
            sample: With ``boxes`` and ``box_labels``.
            rng: Gives the objects and their places.
            partners: A sample with the same fields, or none.

        Returns:
            A new sample; the one given where nothing was pasted.

        Raises:
            ValueError: The samples have no boxes, other fields, or other channels.
        """
        import numpy as np

        if not partners:
            return sample
        (other,) = partners
        self._check(sample, other)
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
        covered = np.zeros(image.shape[:2], np.bool_)
        objects = [self._own_object(sample, row) for row in range(len(sample["boxes"]))]
        for piece in pasted:
            there, here = piece.inside(image.shape)
            pixels = piece.pixels[here]
            source = tuple(
                slice(part.start + first, part.stop + first)
                for part, first in zip(here, piece.source, strict=True)
            )
            image[there][pixels] = other["image"][source][pixels]
            if mask is not None:
                mask[there][pixels] = other["mask"][source][pixels]
            covered[there] |= pixels
            for earlier in objects:
                earlier.hide(piece)
            piece.cut(image.shape)
            objects.append(piece)
        boxes = np.array([each.visible_box() for each in objects], np.float32).reshape(-1, 4)
        kept = left_over(boxes, np.zeros(len(boxes)), self._limits)
        least = 0.0 if self._limits is None else self._limits.min_visibility
        kept &= np.array([each.pixels.any() for each in objects])
        kept &= np.array([each.pixels.sum() >= least * each.size for each in objects])
        rows = [np.arange(len(sample["boxes"])), np.array([piece.row for piece in pasted])]
        new = {**sample, "image": image, "boxes": boxes[kept]}
        new |= {k: values[kept] for k, values in rows_of([sample, other], rows).items()}
        if mask is not None:
            new["mask"] = mask
        if "keypoints" in sample:
            new["keypoints"] = _hidden_under(covered, sample["keypoints"])
        return new

    def _object(
        self, sample: Sample, row: int, place: list[float], shape: tuple[int, ...]
    ) -> _Object | None:
        """An object of the other sample at its new place; None if it has no pixel there."""
        piece = self._own_object(sample, row)
        if not piece.pixels.size:
            return None
        height, width = piece.pixels.shape
        # Inside of the image where it fits, and over all of it where it does not.
        top = _between(place[0], shape[0] - height)
        left = _between(place[1], shape[1] - width)
        piece.source = (piece.top, piece.left)
        piece.move(top - piece.top, left - piece.left)
        return piece

    def _own_object(self, sample: Sample, row: int) -> _Object:
        """An object of a sample where it is: the pixels of its box that are its own."""
        import numpy as np

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
        return _Object(row, top, left, pixels, box.tolist(), int(pixels.sum()))

    def _check(self, sample: Sample, other: Sample) -> None:
        for name in ("image", "boxes", "box_labels", *(["mask"] if "mask" in sample else [])):
            for one in (sample, other):
                if name not in one:
                    raise ValueError(
                        f"copy_paste: {one.get('key')!r} has no {name}; choose annotations with "
                        f"boxes, such as dataset/annotations=coco"
                    )
        if sample["image"].shape[2:] != other["image"].shape[2:]:
            raise ValueError(
                f"copy_paste: {other.get('key')!r} is an image of shape {other['image'].shape}, "
                f"{sample.get('key')!r} of {sample['image'].shape}; channels must agree"
            )


@dataclass(slots=True)
class _Object:
    """What is seen of an object.

    Attributes:
        row: Its box in its sample.
        top: First row of `pixels` in the image.
        left: First column of `pixels` in the image.
        pixels: bool [h, w], where it is seen.
        box: xyxy, pixels of the image.
        size: Number of its pixels before any was hidden.
        source: Top and left where it was in its own image.
    """

    row: int
    top: int
    left: int
    pixels: NDArray[np.bool_]
    box: list[float]
    size: int
    source: tuple[int, int] = (0, 0)
    changed: bool = False

    def move(self, down: int, right: int) -> None:
        self.top, self.left = self.top + down, self.left + right
        self.box = [edge + (down if i % 2 else right) for i, edge in enumerate(self.box)]

    def inside(self, shape: tuple[int, ...]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """The part that lies inside of an image: there, and in `pixels`."""
        there, here = [], []
        for first, length, limit in zip((self.top, self.left), self.pixels.shape, shape[:2],
                                        strict=True):  # fmt: skip
            start, stop = max(first, 0), max(min(first + length, limit), max(first, 0))
            there.append(slice(start, stop))
            here.append(slice(start - first, stop - first))
        return (there[0], there[1]), (here[0], here[1])

    def cut(self, shape: tuple[int, ...]) -> None:
        """Leave out what lies outside of an image."""
        there, here = self.inside(shape)
        if self.pixels[here].shape != self.pixels.shape:
            self.changed = True
            self.pixels = self.pixels[here]
            self.top, self.left = there[0].start, there[1].start

    def hide(self, other: _Object) -> None:
        """Leave out what another one covers."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        bottom = min(self.top + self.pixels.shape[0], other.top + other.pixels.shape[0])
        right = min(self.left + self.pixels.shape[1], other.left + other.pixels.shape[1])
        if top >= bottom or left >= right:
            return
        mine = self.pixels[top - self.top : bottom - self.top, left - self.left : right - self.left]
        theirs = other.pixels[
            top - other.top : bottom - other.top, left - other.left : right - other.left
        ]
        if (mine & theirs).any():
            self.changed = True
            self.pixels = self.pixels.copy()
            self.pixels[
                top - self.top : bottom - self.top, left - self.left : right - self.left
            ] &= ~theirs

    def visible_box(self) -> list[float]:
        """Its box, xyxy; that of what is seen of it where something is hidden."""
        import numpy as np

        if not self.changed:
            return self.box
        rows, columns = np.flatnonzero(self.pixels.any(1)), np.flatnonzero(self.pixels.any(0))
        if not rows.size:
            return [0.0] * 4
        seen = [
            float(self.left + columns[0]),
            float(self.top + rows[0]),
            float(self.left + columns[-1] + 1),
            float(self.top + rows[-1] + 1),
        ]
        return [
            *(max(a, b) for a, b in zip(self.box[:2], seen[:2], strict=True)),
            *(min(a, b) for a, b in zip(self.box[2:], seen[2:], strict=True)),
        ]


def _between(share: float, room: int) -> int:
    """An integer from 0 to `room`, both included, or from `room` to 0 where that is negative."""
    place = min(int(share * (abs(room) + 1)), abs(room))
    return place if room >= 0 else -place


def _hidden_under(covered: NDArray[np.bool_], keypoints: Any) -> NDArray[np.float32]:
    """Keypoints with visibility 1 in place of 2 where something covers them."""
    import numpy as np

    points = np.array(keypoints, np.float32)
    at = np.floor(points[:, :2] + 0.5).astype(np.int64)
    inside = (at >= 0).all(1) & (at < [covered.shape[1], covered.shape[0]]).all(1)
    for row in np.flatnonzero(inside).tolist():
        if covered[at[row, 1], at[row, 0]]:
            points[row, 2] = min(points[row, 2], 1)
    return points
