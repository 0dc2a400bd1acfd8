"""Run an augmentation stack and record the map from each file to its image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import TransformCapabilities
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import Sample
from penstock.transforms.cpu.albumentations_stage import AlbumentationsStage
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.cpu.torchvision_stage import TorchvisionStage
from penstock.transforms.cpu.window_step import WindowStage

FILE_SIZE, TO_IMAGE = "file_size", "to_image"
_GRID = 16  # probe boxes along each side
_MOST_KEPT = 1024  # sizes whose geometry is remembered
_LARGEST_ERROR = 0.1  # pixels
_ROUNDING = 1e-6


class LocatedStack(Stack):
    """A stack that also returns the place of each image in its file.

    ``file_size`` is the height and width before the first step, int64 [2]. ``to_image`` is the
    affine map from file to final image, float64 [2, 3], for x and y in pixels.

    The map is measured once per size: a grid of boxes goes through the steps, and the map is fitted
    to their centres.
    """

    @property
    def capabilities(self) -> TransformCapabilities:
        """Return the stack's capabilities; the added fields change every sample."""
        own = super().capabilities
        if own.partner_counts is not None:
            raise ValueError(
                "augment.eval: a step combines several images, so no place in the result belongs "
                "to one file; remove that step to predict"
            )
        return replace(own, unchanged=False)

    def __call__(self, sample: Sample, rng: np.random.Generator, **more: Any) -> Sample:
        """Apply the steps; see `Stack.__call__`."""
        return {**super().__call__(sample, rng, **more), **self._place(sample)}

    def draw(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Draw for a pending image; see `Stack.draw`."""
        return {**super().draw(sample, rng), **self._place(sample)}

    def _place(self, sample: Sample) -> dict[str, NDArray[Any]]:
        shape = getattr(sample.get("image"), "shape", None)
        if shape is None or len(shape) != 3:
            return {}
        places: dict[tuple[int, ...], NDArray[np.float64]] | None
        places = getattr(self._local, "places", None)
        if places is None:
            places = self._local.places = {}
        if shape not in places:
            if len(places) >= _MOST_KEPT:
                places.clear()
            places[shape] = self._measured(tuple(shape))
        return {FILE_SIZE: np.array(shape[:2], np.int64), TO_IMAGE: places[shape]}

    def _measured(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Fit the affine map of an image of `shape`; raise ValueError if random or not affine."""
        first, second = (self._moved_boxes(shape, seed) for seed in (0, 1))
        if not np.array_equal(first, second):
            raise ValueError(
                f"augment.eval moves pixels at random ({', '.join(self.steps)}), so "
                f"nothing can be moved back to the file; remove the random steps from augment.eval"
            )
        before, after = first[:, :2], first[:, 2:]
        known = np.column_stack([before, np.ones(len(before))])
        if len(known) < 3 or np.linalg.matrix_rank(known) < 3:
            raise ValueError(
                f"augment.eval keeps too little of an image of {shape[1]} x {shape[0]} pixels to "
                f"find its place in the file; check the steps {', '.join(self.steps)}"
            )
        fitted = np.linalg.lstsq(known, after, rcond=None)[0]
        if np.abs(known @ fitted - after).max() > _LARGEST_ERROR:
            raise ValueError(
                f"augment.eval bends the image ({', '.join(self.steps)}), so boxes and masks "
                f"cannot be moved back to the file; use steps such as resize, crop, pad or flip"
            )
        to_image = np.ascontiguousarray(fitted.T)
        to_image[np.abs(to_image) < _ROUNDING] = 0
        if not all(
            isinstance(each, AlbumentationsStage | TorchvisionStage | WindowStage)
            for each in self._stages()
        ):
            self._check_pixels(shape, to_image)
        return to_image

    def _check_pixels(self, shape: tuple[int, ...], to_image: NDArray[np.float64]) -> None:
        """Check that custom steps move boxes and pixels alike; raise ValueError if not.

        An image with a dark and a bright half has an edge. The map of the boxes predicts its place.
        """
        if to_image[0, 1] or to_image[1, 0]:
            return  # rotated or sheared: the edge is not parallel to a side
        for axis in (1, 0):
            image = np.zeros(shape, np.uint8)
            row = 1 - axis  # of x or y
            middle = self._moved({"image": image}, 0)["image"].shape[axis] / 2
            scale, shift = to_image[row, row], to_image[row, 2]
            edge = round((middle - shift) / scale)
            if not 0 < edge < shape[axis] or middle < 4:
                continue
            image[(slice(None),) * axis + (slice(edge, None),)] = 255
            moved = self._moved({"image": image}, 0)["image"]
            profile = np.asarray(moved, np.float64).mean(axis=(1 - axis, 2))
            expected = scale * edge + shift
            found = float(np.abs(np.diff(profile)).argmax()) + 1
            if abs(found - expected) > 2 + 0.02 * len(profile):
                raise ValueError(
                    f"augment.eval moves pixels and boxes differently ({', '.join(self.steps)}): "
                    f"pixels at {found:.0f}, boxes at {expected:.0f}; let each step of your own "
                    f"move sample['boxes'] with the image"
                )

    def _moved(self, fields: Sample, seed: int) -> Sample:
        """Apply the steps to a probe, without box limits, which would drop small boxes."""
        rng = KeyedRng().at(seed, 0, 0, Stream.AUGMENT)
        probe = {"index": 0, "key": "probe", "position": 0, **fields}
        return Stack(self._steps, self._build_step)(probe, rng)

    def _moved_boxes(self, shape: tuple[int, ...], seed: int) -> NDArray[np.float64]:
        """Return centres of uncut boxes of a grid before and after the steps, [n, 4]."""
        height, width = shape[:2]
        rows, columns = (each.ravel() for each in np.mgrid[:_GRID, :_GRID])
        cell = np.array([width, height], np.float64) / _GRID
        low = np.stack([columns, rows], 1) * cell
        boxes = np.concatenate([low, low + cell], 1)
        probe: Sample = {
            "image": np.zeros(shape, np.uint8),
            "boxes": boxes.astype(np.float32),
            "box_number": np.arange(len(boxes)),
        }
        moved = self._moved(probe, seed)
        after, number = np.asarray(moved["boxes"], np.float64), moved["box_number"]
        end = np.array(moved["image"].shape[1::-1], np.float64)
        edge = 1e-4 * end
        whole = (after[:, :2] > edge).all(1) & (after[:, 2:] < end - edge).all(1)
        before = boxes[number]
        return np.concatenate([_centres(before), _centres(after)], 1)[whole]


def _centres(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return (boxes[:, :2] + boxes[:, 2:]) / 2
