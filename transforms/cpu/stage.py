"""A stage of an augmentation stack: consecutive steps of one kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.core.sample import Sample
from penstock.transforms.cpu.targets import Targets

Node = Mapping[str, Any]
BuildStep = Callable[..., Any]
Groups = Iterator[list[Sample]]


class Stage(ABC):
    """Consecutive steps that run together, built from config nodes by step name.

    `crops` tells whether the stage begins with a crop that needs only the image's size.
    """

    crops: bool = False
    global_random: bool = False
    needs_partners: bool = False

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        self.nodes, self.build_step, self.targets = steps, build_step, targets

    @abstractmethod
    def __call__(self, sample: Sample, rng: np.random.Generator, groups: Groups) -> Sample:
        """Apply the steps to a sample; `groups` are the partners of each combining step."""

    @contextmanager
    def noted(self, *names: str) -> Iterator[None]:
        """Note at an error which step raised it."""
        try:
            yield
        except Exception as error:
            steps = " or ".join(f"{name!r} ({self.nodes[name]['_target_']})" for name in names)
            error.add_note(f"in augmentation step {steps}")
            raise
