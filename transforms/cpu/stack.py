"""Run the augmentation stack: named steps in order, with one rng."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from penstock.core.contracts import PartnerTransform, Transform, abilities_of
from penstock.core.registry import find
from penstock.core.sample import PendingImage, Sample
from penstock.transforms.cpu.albumentations_stage import AlbumentationsStage
from penstock.transforms.cpu.stage import BuildStep, Groups, Node, Stage
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings, Targets
from penstock.transforms.cpu.torchvision_stage import TorchvisionStage
from penstock.transforms.cpu.window import WindowStage, WindowStep


def ordered_steps(steps: Mapping[str, Node | None]) -> dict[str, Node]:
    """Return the steps, without None, in the order in which they run.

    ``_after_: name`` puts a step right after another; raise ValueError for unknown ones and cycles.
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


class Stack(Transform):
    """Steps applied to a sample in order; consecutive steps of a library share a stage.

    `steps` are config nodes by name, see `ordered_steps`; `build_step` builds their objects. Every
    thread builds its own, because an albumentations Compose keeps state while it runs.
    """

    def __init__(
        self,
        steps: Mapping[str, Node | None],
        *,
        build_step: BuildStep,
        boxes: BoxSettings | None = None,
        keypoints: KeypointSettings | None = None,
    ) -> None:
        targets = Targets(boxes or BoxSettings(), keypoints or KeypointSettings(swaps=[]))
        self.__setstate__((ordered_steps(steps), build_step, targets))

    def whole_because(self) -> str | None:
        """Return why images must be decoded whole; None if the first step crops by size alone."""
        if not self._steps:
            return "the augmentation is empty, not with a crop"
        if self.stages()[0].crops:
            return None
        return f"the augmentation begins with {next(iter(self._steps))!r}, not with a crop"

    def __call__(
        self, sample: Sample, rng: np.random.Generator, *, partners: Sequence[list[Sample]] = ()
    ) -> Sample:
        """Apply the steps to a copy of a sample; `partners` are those of each combining step."""
        sample, stages, groups = dict(sample), self.stages(), iter(partners)
        windowed = bool(stages) and isinstance(stages[0], WindowStage)
        if isinstance(sample.get("image"), PendingImage) and not windowed:
            sample["image"] = sample["image"].whole()
        for stage in stages:  # on a copy each: an earlier step may keep its result
            sample = stage(dict(sample), rng, groups)
        return sample

    def _counts(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Return how many other samples each combining step needs, in order."""
        stages = [stage for stage in self.stages() if isinstance(stage, _OwnStage)]
        return tuple(stage.step.partners(rng) for stage in stages if stage.needs_partners)

    def name_keypoints(self, names: Sequence[str] | None) -> None:
        """Set the data's names of an object's keypoints; see `KeypointSettings.settled`."""
        settled = self._targets.keypoints.settled(names)
        targets = replace(self._targets, keypoints=settled)
        self.__setstate__((self._steps, self._build_step, targets))

    def __getstate__(self) -> tuple[dict[str, Node], BuildStep, Targets]:
        return self._steps, self._build_step, self._targets

    def __setstate__(self, state: tuple[dict[str, Node], BuildStep, Targets]) -> None:
        self._steps, self._build_step, self._targets = state
        self._local = threading.local()
        stages = self.stages()
        self.unchanged = not stages
        self.global_random = any(stage.global_random for stage in stages)
        self.crops_first = self.whole_because() is None
        needs_partners = any(stage.needs_partners for stage in stages)
        self.partner_counts = self._counts if needs_partners else None

    def stages(self) -> list[Stage]:
        """Return this thread's stages, built on first use."""
        stages: list[Stage] | None = getattr(self._local, "stages", None)
        if stages is None:
            stages = []
            for kind, group in groupby(self._steps.items(), lambda item: _stage_of(item[1])):
                items = [*group]
                parts = [[item] for item in items] if kind is _OwnStage else [items]
                stages += [kind(dict(part), self._build_step, self._targets) for part in parts]
            self._local.stages = stages
        return stages


class _OwnStage(Stage):
    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        super().__init__(steps, build_step, targets)
        ((self._name, node),) = steps.items()
        component = find(str(node["_target_"]))
        target = component.target if component is not None else None
        self.global_random = component is not None and component.global_random
        self.needs_partners = isinstance(target, type) and issubclass(target, PartnerTransform)
        # Steps that combine samples cut boxes themselves, so they get the limits.
        limits = {"box_limits": targets.boxes} if self.needs_partners else {}
        self.step: Any = build_step(node, **limits)
        self.crops = abilities_of(self.step, Transform).crops_first

    def __call__(self, sample: Sample, rng: np.random.Generator, groups: Groups) -> Sample:
        partners = [next(groups, [])] if self.needs_partners else []
        with self.noted(self._name), ExitStack() as states:
            if self.global_random:
                from penstock.core.rng import GlobalStates

                states.enter_context(GlobalStates(int(rng.integers(1 << 63))))
            result: Sample = self.step(sample, rng, *partners)
        return result


def _stage_of(node: Node) -> type[Stage]:
    target = str(node["_target_"])
    component = find(target)
    families = {target.partition(".")[0]}
    if component is not None:
        bases = component.target.__mro__ if isinstance(component.target, type) else ()
        if WindowStep in bases and not component.global_random:
            return WindowStage
        families = {base.__module__.partition(".")[0] for base in bases}
    if "albumentations" in families:
        return AlbumentationsStage
    return TorchvisionStage if "torchvision" in families else _OwnStage
