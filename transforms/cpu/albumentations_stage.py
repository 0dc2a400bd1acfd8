"""Run consecutive albumentations steps as one stage of the augmentation stack."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Sample
from penstock.transforms.cpu.stage import BuildStep, Groups, Node, Stage
from penstock.transforms.cpu.targets import Targets, image_of, outside


class AlbumentationsStage(Stage):
    """Run consecutive albumentations steps as one Compose per kind of sample.

    Boxes outside the image are dropped. Keypoints that leave it in any step get visibility 0.
    """

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        super().__init__(steps, build_step, targets)
        self._composes: dict[tuple[bool, bool], Any] = {}
        self._rng: np.random.Generator | None = None
        self._compose_for(False, False)

    def __call__(self, sample: Sample, rng: np.random.Generator, groups: Groups) -> Sample:
        """Apply the steps in place."""
        image_of(sample)
        has_boxes, has_keypoints = "boxes" in sample, "keypoints" in sample
        compose = self._compose_for(has_boxes, has_keypoints)
        if rng is not self._rng:
            self._rng = rng
            for each in self._composes.values():
                each.set_random_state(rng, _Draws(rng))
        given: Sample = {key: sample[key] for key in ("image", "mask") if key in sample}
        if has_boxes:
            given |= {"bboxes": sample["boxes"], "_rows": np.arange(len(sample["boxes"]))}
            if len(sample.get("box_masks", ())):
                given["masks"] = sample["box_masks"]
        if has_keypoints:
            given["keypoints"] = self.targets.points(sample)
            self._lost = outside(given["keypoints"], sample["image"].shape)
        with self.noted(*self.nodes):
            result = compose(**given)
        shape = result["image"].shape
        if "box_masks" in sample:
            none = np.zeros((0, *shape[:2]), np.uint8)
            sample["box_masks"] = np.asarray(result.pop("masks", none))
        if has_boxes:
            self.targets.put_boxes(sample, result.pop("bboxes"), result.pop("_rows"), shape)
        if has_keypoints:
            self.targets.put_points(sample, result.pop("keypoints"), self._lost)
        sample.update(result)
        return sample

    def _compose_for(self, has_boxes: bool, has_keypoints: bool) -> Any:
        if (made := self._composes.get((has_boxes, has_keypoints))) is not None:
            return made
        # It contacts the network for updates otherwise.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations

        boxes = albumentations.BboxParams(
            format="pascal_voc",
            label_fields=["_rows"],
            clip=True,
            filter_invalid_bboxes=True,
            **asdict(self.targets.boxes),
        )
        points = albumentations.KeypointParams(format="xy", remove_invisible=False)
        compose = albumentations.Compose(
            [self.build_step(_with_tuples(node)) for node in self.nodes.values()],
            bbox_params=boxes if has_boxes else None,
            keypoint_params=points if has_keypoints else None,
        )
        if has_keypoints:
            compose.processors["keypoints"].filter = self._note_lost
        self._composes[has_boxes, has_keypoints] = compose
        self._rng = None
        return compose

    def _note_lost(self, points: NDArray[Any], shape: Mapping[str, int]) -> NDArray[Any]:
        """Note points outside after a step, whose pixels are gone; a processor's `filter`."""
        if len(points) != len(self._lost):
            raise ValueError(
                f"{len(self._lost)} keypoints became {len(points)}, as where an image is mirrored "
                f"at its border; set border_mode: 0"
            )
        self._lost |= outside(points, (shape["height"], shape["width"]))
        return points


def _with_tuples(value: Any) -> Any:
    """Turn lists of values into tuples, since albumentations checks types."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_with_tuples(item) for item in value]
        return items if any(isinstance(item, Mapping) for item in items) else tuple(items)
    return value


class _Draws(random.Random):
    """A stateless `random.Random` that draws everything from a NumPy generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        # Bind the generator's method directly, since stacks draw several times for each sample.
        self.random = generator.random  # type: ignore[method-assign]
        super().__init__()

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of `k` random bits."""
        if k < 0:
            raise ValueError("number of bits must be non-negative")
        n_bytes = (k + 7) // 8
        return int.from_bytes(self._generator.bytes(n_bytes), "little") >> (n_bytes * 8 - k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Return a normal draw; the inherited method would cache every second one."""
        return mu + sigma * float(self._generator.standard_normal())

    def seed(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the object is stateless."""
