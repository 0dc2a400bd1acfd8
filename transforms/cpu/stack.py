"""Run the augmentation stack: named steps in order, with one rng."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    PartnerTransform,
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.registry import find
from penstock.core.sample import PendingImage, Sample
from penstock.transforms.cpu.albumentations_stage import (
    AlbumentationsStage,
    BuildStep,
    Node,
    import_albumentations,
)
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings, Targets
from penstock.transforms.cpu.torchvision_stage import TorchvisionStage
from penstock.transforms.cpu.window_step import WindowStage, WindowStep


def build_stack(
    steps: Mapping[str, Node | None],
    *,
    build_step: BuildStep,
    boxes: BoxSettings | None = None,
    keypoints: KeypointSettings | None = None,
    kind: type[Stack] | None = None,
) -> Stack:
    """Build one transform from a mapping of steps.

    Args:
        steps: Config nodes by step name, in order. A step with ``_after_: name`` runs right after
            that step. None removes a step.
        build_step: Builds the object of a node: a transform of albumentations or torchvision, or
            a callable ``(sample, rng) -> sample``. It must pickle.
        boxes: Limits below which boxes are dropped; None drops only boxes outside the image.
        keypoints: Keypoints that a mirror swaps; None: none.
        kind: Class of the stack; None: `Stack`.

    Raises:
        ValueError: An ``_after_`` names an unknown step, or steps wait for one another.
    """
    return (kind or Stack)(ordered_steps(steps), build_step, Targets(boxes, keypoints))


def ordered_steps(steps: Mapping[str, Node | None]) -> dict[str, Node]:
    """Return the steps in the order in which they run, without removed steps.

    A removed step keeps its place, so steps that follow it stay where they were. Raises ValueError
    for an ``_after_`` that names an unknown step, and for cycles.
    """
    followers: dict[str | None, list[str]] = {}
    for name, node in steps.items():
        after = (node or {}).get("_after_")
        if after is not None and after not in steps:
            raise ValueError(
                f"augmentation step {name!r}: _after_={after!r}, expected one of the steps "
                f"{', '.join(steps)}"
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
    """Steps applied to a sample in order; consecutive steps of a library share a stage.

    A stack pickles as its config. Every thread builds its own steps, because an albumentations
    Compose keeps state while it runs.

    A step may draw from the global random states, which are seeded for each sample and then
    restored. No other thread may use these states at the same time.
    """

    def __init__(
        self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets | None = None
    ) -> None:
        self._steps = dict(steps)
        self._build_step = build_step
        self._targets = targets or Targets()
        self._local = threading.local()
        # An invalid step fails here, not in a worker.
        self._stages()

    @property
    def capabilities(self) -> TransformCapabilities:
        """Return what the steps allow and need."""
        stages = self._stages()
        draws_first = len(stages) == 1 and isinstance(stages[0], WindowStage)
        return TransformCapabilities(
            unchanged=not self._steps,
            global_random=any(_is_global_random(node) for node in self._steps.values()),
            crops_first=self.whole_because() is None,
            fills_rows=True,
            draw=self.draw if draws_first else None,
            partner_counts=(
                self.partner_counts
                if any(_needs_partners(node) for node in self._steps.values())
                else None
            ),
        )

    def whole_because(self) -> str | None:
        """Return why images must be decoded whole; None if the first step crops by size alone."""
        first = next(iter(self._stages()), None)
        if isinstance(first, WindowStage | _OwnStage) and first.crops:
            return None
        begin = f"begins with {self.steps[0]!r}" if self._steps else "is empty"
        return f"the augmentation {begin}, not with a crop"

    def __call__(
        self,
        sample: Sample,
        rng: np.random.Generator,
        *,
        into: NDArray[np.uint8] | None = None,
        partners: Sequence[list[Sample]] = (),
    ) -> Sample:
        """Apply the steps to a copy of a sample; a note names the step that raises.

        Args:
            sample: The sample; the first crop decides how much of a `PendingImage` is decoded.
            rng: Source of every draw.
            into: uint8 [H, W, C]. The image is written here if the shape fits and this saves a
                copy. No step sees this buffer.
            partners: Other samples for each step that combines several, as `partner_counts` says.

        Raises:
            RecordError: A pending image is damaged.
        """
        sample = dict(sample)
        stages = self._stages()
        if isinstance(sample.get("image"), PendingImage) and (
            not stages or not isinstance(stages[0], WindowStage)
        ):
            sample["image"] = sample["image"].whole()
        groups = iter(partners)
        for stage in stages:
            if isinstance(stage, _OwnStage):
                sample = stage(sample, rng, groups)
            elif isinstance(stage, WindowStage) and stage is stages[-1]:
                sample = stage(dict(sample), rng, into)
            else:  # in place, on a copy: an earlier step may keep its result
                sample = stage(dict(sample), rng)
        return sample

    def draw(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Make all draws for a sample before its `PendingImage` is decoded.

        The image of the new sample is a `DrawnImage`. Raises like a call.
        """
        (stage,) = self._stages()
        assert isinstance(stage, WindowStage)
        return stage.draw(dict(sample), rng)

    def partner_counts(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Return how many other samples each combining step needs, in order."""
        stages = [stage for stage in self._stages() if isinstance(stage, _OwnStage)]
        return tuple(stage.partners(rng) for stage in stages if stage.needs_partners)

    def name_keypoints(self, names: Sequence[str] | None) -> None:
        """Set the data's names of an object's keypoints; see `KeypointSettings.settled`."""
        if self._targets.keypoints is not None:
            settled = self._targets.keypoints.settled(names)
            self._targets = replace(self._targets, keypoints=settled)
            self._local = threading.local()

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps, in the order in which they run."""
        return tuple(self._steps)

    def __getstate__(self) -> tuple[dict[str, Node], BuildStep, Targets]:
        return self._steps, self._build_step, self._targets

    def __setstate__(self, state: tuple[dict[str, Node], BuildStep, Targets]) -> None:
        self._steps, self._build_step, self._targets = state
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"Stack({' -> '.join(self._steps)})"

    def _stages(self) -> list[_Stage]:
        """Return this thread's stages, built on first use."""
        stages: list[_Stage] | None = getattr(self._local, "stages", None)
        if stages is None:
            stages = []
            for kind, group in groupby(self._steps.items(), lambda item: _shared_stage(item[1])):
                if kind is not None:
                    stages.append(kind(dict(group), self._build_step, self._targets))
                else:
                    stages += [
                        _OwnStage(name, node, self._build_step, self._targets)
                        for name, node in group
                    ]
            self._local.stages = stages
        return stages


class _OwnStage:
    """A step of this package or of the user."""

    def __init__(self, name: str, node: Node, build_step: BuildStep, targets: Targets) -> None:
        self._name = name
        self._target = node["_target_"]
        self._global_random = _is_global_random(node)
        self.needs_partners = _needs_partners(node)
        # Steps that combine samples cut boxes themselves, so they get the limits.
        self._step = (
            build_step(node, box_limits=targets.boxes) if self.needs_partners else build_step(node)
        )
        self.crops = capabilities_of(self._step, TransformCapabilities).crops_first

    def partners(self, rng: np.random.Generator) -> int:
        count: int = self._step.partners(rng)
        return count

    def __call__(
        self, sample: Sample, rng: np.random.Generator, groups: Iterator[list[Sample]]
    ) -> Sample:
        partners = [next(groups, [])] if self.needs_partners else []
        try:
            if self._global_random:
                from penstock.core.rng import GlobalStates

                with GlobalStates(int(rng.integers(1 << 63))):
                    return self._step(sample, rng, *partners)
            return self._step(sample, rng, *partners)
        except Exception as error:
            error.add_note(f"in augmentation step {self._name!r} ({self._target})")
            raise


_Shared = AlbumentationsStage | TorchvisionStage | WindowStage
_Stage = _Shared | _OwnStage


def _shared_stage(node: Node) -> type[_Shared] | None:
    """Return the stage class that runs steps like this one together; None for other steps."""
    target = str(node["_target_"])
    component = find(target)
    if component is None:
        if target.startswith("torchvision."):
            return TorchvisionStage
        return AlbumentationsStage if target.startswith("albumentations.") else None
    if not isinstance(component.target, type):
        return None
    if issubclass(component.target, WindowStep) and not component.global_random:
        return WindowStage
    # A subclass implies an imported library; this import waits for another thread's.
    if "albumentations" in sys.modules:
        library = import_albumentations()
        if issubclass(component.target, (library.BasicTransform, library.BaseCompose)):
            return AlbumentationsStage
    if "torchvision.transforms.v2" in sys.modules:
        from torchvision.transforms.v2 import Transform

        if issubclass(component.target, Transform):
            return TorchvisionStage
    return None


def _needs_partners(node: Node) -> bool:
    component = find(str(node["_target_"]))
    target = component.target if component is not None else None
    return isinstance(target, type) and issubclass(target, PartnerTransform)


def _is_global_random(node: Node) -> bool:
    component = find(str(node["_target_"]))
    own = component is not None and component.global_random
    return own or _shared_stage(node) is TorchvisionStage
