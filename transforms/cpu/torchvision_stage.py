"""Run consecutive torchvision.transforms.v2 steps as one stage of the augmentation stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Sample
from penstock.transforms.cpu.targets import LostPoints, Targets, cut_boxes, image_of

Node = Mapping[str, Any]
_MIXING = ("MixUp", "CutMix")


class TorchvisionStage:
    """Run consecutive torchvision steps with torch's global state, seeded for each sample.

    Torchvision gets ``image``, ``mask``, ``boxes``, ``box_masks`` and ``keypoints`` as tv_tensors.
    After every step, boxes are cut at the image's edges. Boxes outside are dropped, with their rows
    in every ``box_*`` field. Keypoints that leave the image stay, with visibility 0.

    Args:
        steps: Config nodes by step name.
        build_step: Builds the transform of a node.
        targets: Box limits and keypoint swaps.

    Raises:
        ValueError: A step cannot be built, or mixes images.
    """

    def __init__(
        self, steps: Mapping[str, Node], build_step: Callable[..., Any], targets: Targets
    ) -> None:
        self._steps = {n: (str(node["_target_"]), build_step(node)) for n, node in steps.items()}
        self._targets = targets
        for name, (target, step) in self._steps.items():
            if type(step).__name__ in _MIXING:
                raise ValueError(
                    f"augmentation step {name!r}: {target} mixes the images of a batch; type "
                    f"batch_transform={type(step).__name__.lower()}, and leave this step away"
                )

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Apply the steps to a sample, in place."""
        from penstock.core.rng import GlobalStates

        image = image_of(sample)
        given = self._tensors(sample)
        lost = LostPoints()
        if "keypoints" in given:
            lost.begin(given["keypoints"].numpy(), image.shape)
        with GlobalStates(int(rng.integers(1 << 63))):
            for name, (target, step) in self._steps.items():
                try:
                    given = step(given)
                    self._look(given, lost)
                except Exception as error:
                    error.add_note(f"in augmentation step {name!r} ({target})")
                    raise
        pixels = given["image"].permute(1, 2, 0).contiguous().numpy()
        if "mask" in given:
            sample["mask"] = given["mask"].numpy().astype(sample["mask"].dtype, copy=False)
        if "boxes" in given:
            rows = given["labels"].numpy()
            if "box_masks" in given:
                masks = np.zeros((len(sample["boxes"]), *pixels.shape[:2]), np.uint8)
                masks[rows] = given["box_masks"].numpy()
                sample["box_masks"] = masks
            self._targets.put_boxes(sample, given["boxes"].numpy(), rows, pixels.shape)
        if "keypoints" in given:
            self._targets.put_points(sample, given["keypoints"].numpy(), lost.marks)
        sample["image"] = pixels
        return sample

    def _tensors(self, sample: Sample) -> dict[str, Any]:
        """Return torchvision's inputs for a sample; ``labels`` are the rows of the boxes."""
        import torch
        from torchvision import tv_tensors

        image = sample["image"]
        size = image.shape[:2]
        given = {"image": tv_tensors.Image(_tensor(image).permute(2, 0, 1))}
        if "mask" in sample:
            mask = sample["mask"]  # torch cannot resize uint16
            mask = mask.astype(np.int32) if mask.dtype == np.uint16 else mask
            given["mask"] = tv_tensors.Mask(_tensor(mask))
        if "boxes" in sample:
            boxes = torch.tensor(sample["boxes"], dtype=torch.float32).reshape(-1, 4)
            given["boxes"] = _boxes(boxes, size)
            given["labels"] = torch.arange(len(boxes))
            if "box_masks" in sample:
                given["box_masks"] = tv_tensors.Mask(_tensor(sample["box_masks"]))
        if "keypoints" in sample:
            points = torch.tensor(self._targets.points(sample), dtype=torch.float32)
            given["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=size)
        return given

    def _look(self, given: dict[str, Any], lost: LostPoints) -> None:
        """Cut boxes at the edges of the current image, and record lost points."""
        import torch
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        image = given["image"]
        if not isinstance(image, torch.Tensor):
            raise ValueError(
                f"it gives a {type(image).__name__} in the place of the image's tensor; leave this "
                f"step away: what a model takes is made of images by augment.device"
            )
        height, width = image.shape[-2:]
        if "boxes" in given:
            boxes = functional.convert_bounding_box_format(given["boxes"], new_format="XYXY")
            cut, kept = cut_boxes(boxes.numpy(), (height, width), self._targets.boxes)
            there = torch.from_numpy(kept)
            given["boxes"] = _boxes(torch.from_numpy(cut)[there], (height, width))
            given["labels"] = given["labels"][there]
            if "box_masks" in given:
                given["box_masks"] = tv_tensors.Mask(given["box_masks"][there])
        if "keypoints" in given:
            lost.note(given["keypoints"].numpy(), {"height": height, "width": width})


def _tensor(array: NDArray[Any]) -> Any:
    """Return a tensor that shares an array's memory, or a copy if it is read-only."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _boxes(boxes: Any, size: tuple[int, int]) -> Any:
    """Return boxes that torchvision does not clamp, so that the limits see their whole area."""
    from torchvision import tv_tensors

    return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size, clamping_mode=None)
