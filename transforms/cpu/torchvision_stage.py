"""Run consecutive torchvision.transforms.v2 steps as one stage of the augmentation stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Sample
from penstock.transforms.cpu.stage import BuildStep, Groups, Node, Stage
from penstock.transforms.cpu.targets import Targets, image_of, outside


class TorchvisionStage(Stage):
    """Run torchvision steps one by one with torch's global state, seeded for each sample."""

    global_random = True

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        super().__init__(steps, build_step, targets)
        self._steps = {name: build_step(node) for name, node in steps.items()}

    def __call__(self, sample: Sample, rng: np.random.Generator, groups: Groups) -> Sample:
        """Apply the steps in place."""
        from penstock.core.rng import GlobalStates

        image_of(sample)
        with GlobalStates(int(rng.integers(1 << 63))):
            for name, step in self._steps.items():
                with self.noted(name):
                    self._put(sample, step(self._tensors(sample)))
        return sample

    def _tensors(self, sample: Sample) -> dict[str, Any]:
        """Return torchvision's inputs for a sample; ``labels`` are the rows of the boxes."""
        import torch
        from torchvision import tv_tensors

        size = sample["image"].shape[:2]
        given = {"image": tv_tensors.Image(_tensor(sample["image"]).permute(2, 0, 1))}
        if "mask" in sample:
            mask = sample["mask"]  # torch cannot resize uint16
            mask = mask.astype(np.int32) if mask.dtype == np.uint16 else mask
            given["mask"] = tv_tensors.Mask(_tensor(mask))
        if "boxes" in sample:
            boxes = torch.tensor(sample["boxes"], dtype=torch.float32).reshape(-1, 4)
            # Torchvision does not clamp them, so that the limits see their whole area.
            more: dict[str, Any] = {"canvas_size": size, "clamping_mode": None}
            given["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", **more)
            given["labels"] = torch.arange(len(boxes))
            if "box_masks" in sample:
                given["box_masks"] = tv_tensors.Mask(_tensor(sample["box_masks"]))
        if "keypoints" in sample:
            points = torch.tensor(self.targets.points(sample), dtype=torch.float32)
            given["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=size)
        return given

    def _put(self, sample: Sample, result: dict[str, Any]) -> None:
        from torchvision.transforms.v2 import functional

        image, before = result["image"], sample["image"]
        sample["image"] = image.permute(1, 2, 0).contiguous().numpy()
        shape = sample["image"].shape
        if "mask" in result:
            sample["mask"] = result["mask"].numpy().astype(sample["mask"].dtype, copy=False)
        if "boxes" in result:
            boxes = functional.convert_bounding_box_format(result["boxes"], new_format="XYXY")
            cut, kept = self.targets.boxes.cut(boxes.numpy(), shape)
            rows = result["labels"].numpy()
            if "box_masks" in result:
                masks = np.zeros((len(sample["boxes"]), *shape[:2]), np.uint8)
                masks[rows] = result["box_masks"].numpy()
                sample["box_masks"] = masks
            self.targets.put_boxes(sample, cut[kept], rows[kept], shape)
        if "keypoints" in result:
            points = result["keypoints"].numpy()
            lost = outside(points, shape)
            lost[: len(sample["keypoints"])] |= outside(sample["keypoints"], before.shape)
            self.targets.put_points(sample, points, lost)


def _tensor(array: NDArray[Any]) -> Any:
    """Return a tensor that shares an array's memory, or a copy if it is read-only."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
