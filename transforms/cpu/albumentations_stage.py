"""Run consecutive albumentations steps as one stage of the augmentation stack."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import DrawnImage, PendingImage, RecordError, Sample, require_pixels
from penstock.transforms.cpu.crop_first import take_first_steps
from penstock.transforms.cpu.targets import LostPoints, Targets

T = TypeVar("T")
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
        compose, _ = self._compose_for(False, False)
        self._first = take_first_steps(compose)

    def __call__(
        self, sample: Sample, rng: np.random.Generator, into: NDArray[np.uint8] | None = None
    ) -> Sample:
        """Apply the steps in place; write the image to `into`, uint8 [H, W, C], to save a copy."""
        if rng is not self._rng:
            self._take_draws_from(rng)
        image: Any = sample.get("image")
        if self._first is not None and _image_alone(sample) and self._first.takes(image):
            sample["image"] = self._noted(self._first, image, into)
            return sample
        has_boxes, has_keypoints = "boxes" in sample, "keypoints" in sample
        if image is None:
            raise ValueError(
                f"no image to augment, fields: {', '.join(sample)}; leave samples as they are with "
                f"augment=as_is, or say which field is the image with dataset.keys={{FIELD:image}}"
            )
        if isinstance(image, PendingImage):
            sample["image"] = image.whole()
        require_pixels(image)
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

    def whole_because(self) -> str | None:
        """Return why these steps need a whole image; see `Stack.whole_because`."""
        if self._first is not None and self._first.crops:
            return None
        step = next(iter(self._steps))
        target = str(self._steps[step]["_target_"]).rpartition(".")[2]
        return f"the augmentation begins with {step!r} ({target}), not with a crop"

    @property
    def draws_first(self) -> bool:
        """Whether `draw` makes every random draw of these steps."""
        return self._first is not None and self._first.draws_first

    def draw(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Draw for a sample; leave a `DrawnImage` if no other field depends on the pixels."""
        image = sample["image"]
        if self._first is None or not _image_alone(sample) or not self._first.takes(image):
            return self(sample, rng)
        if rng is not self._rng:
            self._take_draws_from(rng)
        pixels = self._noted(self._first.draw, image)
        sample["image"] = DrawnImage(image, functools.partial(self._noted, pixels))
        return sample

    def _noted(self, make: Callable[..., T], *given: Any) -> T:
        """Call `make`; add a note with the step's name to its exceptions."""
        try:
            return make(*given)
        except RecordError:
            raise
        except Exception as error:
            self._note_step(error, self._compose_for(False, False)[1])
            raise

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


def _image_alone(sample: Sample) -> bool:
    return not ("boxes" in sample or "keypoints" in sample or "mask" in sample)


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
