"""The augmentation stack: named steps in order, albumentations and ours, driven by one rng."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from datasets.sample import Sample
from pipeline.registry import find

if TYPE_CHECKING:
    import numpy as np

    from datasets.protocols import Transform

Node = Mapping[str, Any]
BuildStep = Callable[[Node], Any]


def build_stack(steps: Mapping[str, Node | None], *, build_step: BuildStep) -> Stack:
    """Make one transform of a mapping of steps.

    Args:
        steps: Config nodes by step name. They run in the order of the mapping, except that a
            step with ``_after_: name`` runs right after that one. None removes a step.
        build_step: Makes the object of one node: an albumentations transform, or a callable
            ``(sample, rng) -> sample``. It is pickled with the stack, so it is a function of a
            module.

    Returns:
        The stack.

    Raises:
        ValueError: An ``_after_`` names no step, or the steps wait for one another.
    """
    return Stack(ordered_steps(steps), build_step)


def ordered_steps(steps: Mapping[str, Node | None]) -> dict[str, Node]:
    """Steps in the order in which they run, without those that are None.

    Args:
        steps: Config nodes by step name, some with ``_after_``. A removed step keeps its
            place, so that what comes after it stays where it was.

    Raises:
        ValueError: An ``_after_`` names no step, or the steps wait for one another.
    """
    followers: dict[str | None, list[str]] = {}
    for name, node in steps.items():
        after = (node or {}).get("_after_")
        if after is not None and after not in steps:
            raise ValueError(
                f"augmentation step {name!r}: _after_ names {after!r}, which is no step; "
                f"steps: {', '.join(steps)}"
            )
        followers.setdefault(after, []).append(name)
    order: list[str] = []
    waiting = followers.get(None, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting.extend(followers.get(order[-1], [])[::-1])
    if len(order) < len(steps):
        circle = ", ".join(name for name in steps if name not in order)
        raise ValueError(f"augmentation steps wait for one another by _after_: {circle}")
    return {name: node for name in order if (node := steps[name]) is not None}


class Stack:
    """Steps applied to a sample in order; consecutive albumentations steps share one Compose.

    It pickles as its recipe. Every thread builds steps of its own, because an albumentations
    Compose keeps state while it runs.

    Attributes:
        global_random: A step draws from the global random states, so this stack may only run
            where no other thread draws from them. They are seeded for each sample and put
            back afterwards.
    """

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep) -> None:
        self._steps = dict(steps)
        self._build_step = build_step
        self._local = threading.local()
        self.global_random = any(_is_global_random(node) for node in self._steps.values())
        self._stages()  # a step that cannot be built stops the program here, not in a worker

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Apply the steps.

        Args:
            sample: The sample; its arrays are left as they are.
            rng: Where every draw comes from.

        Returns:
            A new sample.

        Raises:
            Exception: Whatever a step raises, with a note that names the step.
        """
        sample = dict(sample)
        for stage in self._stages():
            sample = stage(sample, rng)
        return sample

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps, in the order in which they run."""
        return tuple(self._steps)

    def __getstate__(self) -> tuple[dict[str, Node], BuildStep]:
        return self._steps, self._build_step

    def __setstate__(self, state: tuple[dict[str, Node], BuildStep]) -> None:
        self._steps, self._build_step = state
        self._local = threading.local()
        self.global_random = any(_is_global_random(node) for node in self._steps.values())

    def __repr__(self) -> str:
        return f"Stack({' -> '.join(self._steps)})"

    def _stages(self) -> list[Transform]:
        """This thread's stages, built on first use."""
        stages: list[Transform] | None = getattr(self._local, "stages", None)
        if stages is None:
            stages = []
            for foreign, group in groupby(self._steps.items(), lambda item: _is_foreign(item[1])):
                if foreign:
                    stages.append(_AlbumentationsStage(dict(group), self._build_step))
                else:
                    stages += [_OwnStage(name, node, self._build_step) for name, node in group]
            self._local.stages = stages
        return stages


class _OwnStage:
    """One step of ours or of the user's."""

    def __init__(self, name: str, node: Node, build_step: BuildStep) -> None:
        self._name = name
        self._target = node["_target_"]
        self._global_random = _is_global_random(node)
        self._step = build_step(node)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        try:
            if self._global_random:
                from pipeline.global_random import global_states

                with global_states(int(rng.integers(1 << 63))):
                    return self._step(sample, rng)
            return self._step(sample, rng)
        except Exception as error:
            error.add_note(f"in augmentation step {self._name!r} ({self._target})")
            raise


class _AlbumentationsStage:
    """Consecutive albumentations steps in one Compose for each kind of sample.

    ``image`` and ``mask`` go through as they are; ``boxes`` are clipped to the image and those
    that leave it are dropped, together with their rows of every ``box_*`` field; ``keypoints``
    that leave it get visibility 0 and stay, so that their number does not change.
    """

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep) -> None:
        self._steps = steps
        self._build_step = build_step
        self._composes: dict[tuple[bool, bool], tuple[Any, dict[int, str]]] = {}
        self._rng: np.random.Generator | None = None
        self._compose_for(False, False)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        if rng is not self._rng:
            self._take_draws_from(rng)
        has_boxes, has_keypoints = "boxes" in sample, "keypoints" in sample
        compose, names = self._compose_for(has_boxes, has_keypoints)
        given: Sample = {key: sample[key] for key in ("image", "mask") if key in sample}
        if has_boxes:
            import numpy as np

            given |= {"bboxes": sample["boxes"], "_rows": np.arange(len(sample["boxes"]))}
        if has_keypoints:
            given["keypoints"] = sample["keypoints"][:, :2]
        try:
            result = compose(**given)
        except Exception as error:
            step = _failed_step(error, names)
            target = self._steps[step]["_target_"] if step in self._steps else "albumentations"
            error.add_note(f"in augmentation step {step!r} ({target})")
            raise
        if has_boxes:
            _put_boxes(sample, result.pop("bboxes"), result.pop("_rows"))
        if has_keypoints:
            _put_keypoints(sample, result.pop("keypoints"), result["image"].shape)
        sample.update(result)
        return sample

    def _compose_for(self, has_boxes: bool, has_keypoints: bool) -> tuple[Any, dict[int, str]]:
        """The Compose for samples with these fields, and the step name of each transform."""
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
                )
                if has_boxes
                else None,
                keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False)
                if has_keypoints
                else None,
            )
            made = compose, {id(step): name for name, step in transforms.items()}
            self._composes[has_boxes, has_keypoints] = made
            if self._rng is not None:
                self._take_draws_from(self._rng)
        return made

    def _take_draws_from(self, rng: np.random.Generator) -> None:
        from pipeline.rng import PythonRandom

        self._rng = rng
        for compose, _ in self._composes.values():
            compose.set_random_state(rng, PythonRandom(rng))


def import_albumentations() -> Any:
    """Import albumentations without the request to the network that it makes when imported."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations

    return albumentations


def _put_boxes(sample: Sample, boxes: Any, rows: Any) -> None:
    import numpy as np

    kept = np.asarray(rows, np.int64)
    count = len(sample["boxes"])
    sample["boxes"] = np.asarray(boxes, np.float32).reshape(-1, 4)
    for key in [key for key in sample if key.startswith("box_")]:
        if len(sample[key]) == count:
            sample[key] = np.asarray(sample[key])[kept]


def _put_keypoints(sample: Sample, points: Any, shape: tuple[int, ...]) -> None:
    import numpy as np

    keypoints = np.array(sample["keypoints"], np.float32)
    keypoints[:, :2] = np.asarray(points, np.float32).reshape(-1, 2)
    x, y = keypoints[:, 0], keypoints[:, 1]
    keypoints[(x < 0) | (y < 0) | (x >= shape[1]) | (y >= shape[0]), 2] = 0
    sample["keypoints"] = keypoints


def _failed_step(error: Exception, names: Mapping[int, str]) -> str:
    """The step in whose method an exception began."""
    trace = error.__traceback__
    while trace is not None:
        name = names.get(id(trace.tb_frame.f_locals.get("self")))
        if name is not None:
            return name
        trace = trace.tb_next
    return " or ".join(names.values())


def _is_foreign(node: Node) -> bool:
    """Whether a step is albumentations' own, or a registered subclass of one of theirs."""
    component = find(str(node["_target_"]))
    if component is None:
        return str(node["_target_"]).startswith("albumentations.")
    bases = getattr(component.target, "__mro__", ())
    return any(base.__module__.startswith("albumentations.") for base in bases)


def _is_global_random(node: Node) -> bool:
    component = find(str(node["_target_"]))
    return component is not None and component.global_random


def _with_tuples(value: Any) -> Any:
    """Lists of values as tuples, which is what albumentations compares types with."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_with_tuples(item) for item in value]
        return items if any(isinstance(item, Mapping) for item in items) else tuple(items)
    return value
