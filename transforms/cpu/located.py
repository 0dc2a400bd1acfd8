"""Run an augmentation stack and record the map from each file to its image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import Sample
from penstock.transforms.cpu.albumentations_stage import AlbumentationsStage
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.cpu.targets import Targets
from penstock.transforms.cpu.torchvision_stage import TorchvisionStage
from penstock.transforms.cpu.window import WindowStage

FILE_SIZE, TO_IMAGE = "file_size", "to_image"
_GRID = 16  # probe boxes along each side
_LARGEST_ERROR = 0.1  # pixels
_ROUNDING = 1e-6


class LocatedStack(Stack):
    """A stack that also returns the place of each image in its file, measured once per size.

    ``file_size`` is the height and width before the first step, int64 [2]. ``to_image`` is the
    affine map of x and y from file to image, float64 [2, 3], fitted to a grid of moved boxes.
    """

    def __call__(self, sample: Sample, rng: np.random.Generator, **more: Any) -> Sample:
        """Apply the steps; see `Stack.__call__`."""
        return {**super().__call__(sample, rng, **more), **self._place(sample)}

    def _place(self, sample: Sample) -> dict[str, NDArray[Any]]:
        shape = getattr(sample.get("image"), "shape", None)
        if shape is None or len(shape) != 3:
            return {}
        places: dict[tuple[int, ...], NDArray[np.float64]]
        places = self._local.__dict__.setdefault("places", {})
        if shape not in places:
            places[shape] = self._measured(shape)
        return {FILE_SIZE: np.array(shape[:2], np.int64), TO_IMAGE: places[shape]}

    def _measured(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Fit the affine map of an image of `shape`; raise ValueError if random or not affine."""
        if any(stage.needs_partners for stage in self.stages()):
            raise self._problem("combines several images", "remove that step")
        (before, after), (_, again) = (self._moved_boxes(shape, seed) for seed in (0, 1))
        if not np.array_equal(after, again):
            raise self._problem("moves pixels at random", "remove the random steps")
        known = np.column_stack([before, np.ones(len(before))])
        if len(known) < 3 or np.linalg.matrix_rank(known) < 3:
            size = f"{shape[1]} x {shape[0]} pixels"
            raise self._problem(f"keeps too little of an image of {size}", "check the steps")
        fitted = np.linalg.lstsq(known, after, rcond=None)[0]
        if np.abs(known @ fitted - after).max() > _LARGEST_ERROR:
            raise self._problem("bends the image", "use steps such as resize, crop, pad or flip")
        to_image = np.ascontiguousarray(fitted.T)
        to_image[np.abs(to_image) < _ROUNDING] = 0
        exact = (AlbumentationsStage, TorchvisionStage, WindowStage)
        if not all(isinstance(stage, exact) for stage in self.stages()):
            self._check_pixels(shape, to_image)
        return to_image

    def _problem(self, text: str, remedy: str) -> ValueError:
        return ValueError(
            f"augment.eval {text} ({', '.join(self._steps)}), so boxes and masks cannot be moved "
            f"back to the file; {remedy}"
        )

    def _check_pixels(self, shape: tuple[int, ...], to_image: NDArray[np.float64]) -> None:
        """Check that custom steps move boxes and pixels alike; raise ValueError if not."""
        if to_image[0, 1] or to_image[1, 0]:
            return  # rotated or sheared: the edges are not parallel to a side
        # The pixels that differ for an image with and without a bright rectangle show its place.
        corners = np.array([[0.3, 0.3], [0.7, 0.7]]) * shape[1::-1] // 1
        (left, top), (right, bottom) = corners.astype(int).tolist()
        images = np.zeros((2, *shape), np.uint8)
        images[1, top:bottom, left:right] = 255
        dark, bright = (self._moved({"image": each}, 0)["image"].astype(float) for each in images)
        changed = np.abs(bright - dark).max(2)
        end = np.array(changed.shape[::-1])
        expected = np.sort(corners @ to_image[:, :2] + to_image[:, 2], 0).clip(0, end)
        if not changed.any() or (expected[0] == expected[1]).any():
            return  # outside the image
        rows, columns = np.nonzero(changed > changed.max() / 2)
        found = [[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]]
        if (np.abs(expected - found) > 2 + 0.02 * end).any():
            raise self._problem(
                "moves pixels and boxes differently",
                "let each step of your own move sample['boxes'] with the image",
            )

    def _moved(self, fields: Sample, seed: int) -> Sample:
        """Apply the steps to a probe, without box limits, which would drop small boxes."""
        rng = KeyedRng().at(seed, 0, 0, Stream.AUGMENT)
        probe = {"index": 0, "key": "probe", "position": 0, **fields}
        steps = Stack.__new__(Stack)
        steps.__setstate__((self._steps, self._build_step, Targets()))
        return steps(probe, rng)

    def _moved_boxes(
        self, shape: tuple[int, ...], seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return centres [n, 2] of uncut boxes of a grid, before and after the steps."""
        cell = np.array(shape[1::-1], np.float64) / _GRID
        low = np.mgrid[:_GRID, :_GRID].reshape(2, -1)[::-1].T * cell
        boxes = np.concatenate([low, low + cell], 1)
        probe: Sample = {
            "image": np.zeros(shape, np.uint8),
            "boxes": boxes.astype(np.float32),
            "box_number": np.arange(len(boxes)),
        }
        moved = self._moved(probe, seed)
        after = np.asarray(moved["boxes"], np.float64)
        end = np.array(moved["image"].shape[1::-1], np.float64)
        edge = 1e-4 * end
        whole = (after[:, :2] > edge).all(1) & (after[:, 2:] < end - edge).all(1)
        before = boxes[moved["box_number"]][whole]
        after = after[whole]
        return (before[:, :2] + before[:, 2:]) / 2, (after[:, :2] + after[:, 2:]) / 2
