"""Run consecutive albumentations steps as one stage of the augmentation stack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.core.sample import Sample
from penstock.transforms.cpu.targets import LostPoints, Targets, image_of

Node = Mapping[str, Any]
BuildStep = Callable[..., Any]


class AlbumentationsStage:
    """Run consecutive albumentations steps as one Compose per kind of sample.

    Compose takes ``image`` and ``mask`` as they are. It clips ``boxes`` to the image and drops
    boxes outside it, with their rows in every ``box_*`` field. Boxes with ``box_masks`` shrink to
    the rest of their mask. Keypoints that leave the image in any step stay, with visibility 0.

    Args:
        steps: Config nodes by step name.
        build_step: Builds the transform of a node.
        targets: Box limits and keypoint swaps.
    """

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        self._steps = steps
        self._build_step = build_step
        self._targets = targets
        self._composes: dict[tuple[bool, bool], tuple[Any, dict[int, str]]] = {}
        self._rng: np.random.Generator | None = None
        self._lost = LostPoints()
        self._compose_for(False, False)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Apply the steps to a sample, in place."""
        if rng is not self._rng:
            self._take_draws_from(rng)
        image_of(sample)
        has_boxes, has_keypoints = "boxes" in sample, "keypoints" in sample
        compose, names = self._compose_for(has_boxes, has_keypoints)
        given: Sample = {key: sample[key] for key in ("image", "mask") if key in sample}
        if has_boxes:
            given |= {"bboxes": sample["boxes"], "_rows": np.arange(len(sample["boxes"]))}
            if len(sample.get("box_masks", ())):
                given["masks"] = sample["box_masks"]
        if has_keypoints:
            given["keypoints"] = self._targets.points(sample)
            self._lost.begin(given["keypoints"], sample["image"].shape)
        try:
            result = compose(**given)
        except Exception as error:
            self._note_step(error, names)
            raise
        if has_boxes:
            boxes, rows = result.pop("bboxes"), result.pop("_rows")
            shape = result["image"].shape
            if "box_masks" in sample:
                masks = result.pop("masks", np.zeros((0, *shape[:2]), np.uint8))
                sample["box_masks"] = np.asarray(masks)
            self._targets.put_boxes(sample, boxes, rows, shape)
        if has_keypoints:
            self._targets.put_points(sample, result.pop("keypoints"), self._lost.marks)
        sample.update(result)
        return sample

    def _note_step(self, error: Exception, names: Mapping[int, str]) -> None:
        step = _failed_step(error, names)
        target = self._steps[step]["_target_"] if step in self._steps else "albumentations"
        error.add_note(f"in augmentation step {step!r} ({target})")

    def _compose_for(self, has_boxes: bool, has_keypoints: bool) -> tuple[Any, dict[int, str]]:
        """Build the Compose for these fields once, with the step name of each transform."""
        made = self._composes.get((has_boxes, has_keypoints))
        if made is None:
            albumentations = import_albumentations()
            transforms = {
                name: self._build_step(_with_tuples(node)) for name, node in self._steps.items()
            }
            compose = albumentations.Compose(
                list(transforms.values()),
                bbox_params=albumentations.BboxParams(
                    format="pascal_voc",
                    label_fields=["_rows"],
                    clip=True,
                    filter_invalid_bboxes=True,
                    **self._targets.box_limits,
                )
                if has_boxes
                else None,
                keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False)
                if has_keypoints
                else None,
            )
            if has_keypoints:
                compose.processors["keypoints"].filter = self._lost.note
            made = compose, {id(step): name for name, step in transforms.items()}
            self._composes[has_boxes, has_keypoints] = made
            if self._rng is not None:
                self._take_draws_from(self._rng)
        return made

    def _take_draws_from(self, rng: np.random.Generator) -> None:
        from penstock.core.rng import PythonRandom

        self._rng = rng
        for compose, _ in self._composes.values():
            compose.set_random_state(rng, PythonRandom(rng))


def import_albumentations() -> Any:
    """Import albumentations without its network request for updates."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations

    return albumentations


def _failed_step(error: Exception, names: Mapping[int, str]) -> str:
    """Return the step whose method raised an exception."""
    trace = error.__traceback__
    while trace is not None:
        name = names.get(id(trace.tb_frame.f_locals.get("self")))
        if name is not None:
            return name
        trace = trace.tb_next
    return " or ".join(names.values())


def _with_tuples(value: Any) -> Any:
    """Turn lists of values into tuples, since albumentations checks types."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_with_tuples(item) for item in value]
        return items if any(isinstance(item, Mapping) for item in items) else tuple(items)
    return value
