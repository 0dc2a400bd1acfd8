"""Where in a config a component may stand, and which kinds are accepted there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Lt


@dataclass(frozen=True, slots=True)
class Place:
    """A key that holds a component.

    Attributes:
        kinds: Accepted groups of the registry and families of the allow-list.
        nullable: null is accepted and means none.
        only: The one target that is accepted, where there is only one.
        step: A step of a stack, which may say ``_after_``.
        implied: The target is `only` where none is given.
    """

    kinds: tuple[str, ...]
    nullable: bool = False
    only: str | None = None
    step: bool = False
    implied: bool = False


PLACES: dict[str, Place] = {
    "dataset": Place(("dataset",)),
    "task": Place(("task",)),
    "sampler": Place(("sampler",)),
    "collate": Place(("collate",)),
    "loader": Place(("settings",), only="settings/loader"),
    "model": Place(("model",)),
    "optimizer": Place(("optimizer", "torch.optim")),
    "scheduler": Place(("scheduler", "torch.optim.lr_scheduler"), nullable=True),
    "trainer": Place(("settings",), only="settings/trainer"),
}
"""Top-level keys that hold one component."""

MAPPINGS: dict[str, Place] = {
    "augment.train": Place(("transform", "albumentations"), nullable=True, step=True),
    "augment.eval": Place(("transform", "albumentations"), nullable=True, step=True),
    "augment.device": Place(("batch_transform",), nullable=True, step=True),
    "logger": Place(("logger",), nullable=True),
}
"""Keys that hold components by name."""

PARTS: dict[str, Place] = {
    "storage": Place(("storage",)),
    "source": Place(("source",)),
    "decode": Place(("decode",)),
    "cache": Place(("cache",), nullable=True),
    "annotations": Place(("annotations",), nullable=True),
}
"""Keys inside of a dataset (and of a cache) that hold a component of their own."""

LIES_IN = ("storage", "source")
"""Parts of which a data set takes one or none."""

PARTS_OF: dict[str, dict[str, Place]] = {
    "settings/source": {
        "dataset": Place(("dataset",)),
        "sampler": Place(("sampler",), nullable=True),
    }
}
"""The same inside of one component alone."""

PART_MAPPINGS: dict[str, Place] = {"tasks": Place(("task",), nullable=True)}
"""Keys inside of a component that hold components by name."""

PART_MAPPINGS_OF: dict[str, dict[str, Place]] = {
    "dataset/mix": {
        "sources": Place(("settings",), nullable=True, only="settings/source", implied=True)
    }
}
"""The same inside of one component alone."""

PART_MAPPING_KEYS = ("task.tasks", "dataset.sources")
"""Full keys of both."""

VALUES: dict[str, Any] = {
    "imports": list[str],
    "seed": Annotated[int, Ge(0), Lt(2**63)],
    "data_dir": str,
    "outputs": str,
}
"""Top-level keys that hold a value."""

TARGETS: dict[str, Place] = {
    "boxes": Place(("settings",), nullable=True, only="settings/boxes"),
    "keypoints": Place(("settings",), nullable=True, only="settings/keypoints"),
}
"""Keys of `augment` beside its stacks: what happens to targets of these kinds."""

CHOSEN_BY: dict[str, dict[str, str]] = {"pack": {"to": "writer"}}
"""By command: settings that choose an option of a group, which stands at the top beside them.

``pack.to=lmdb`` chooses ``writer=lmdb``, whose arguments are ``writer.part_records=...``.
"""

REFUSED_IN_MIX = ("mix", "stream")
"""Options of ``dataset`` that are no source of a mix."""

STACKS = ("train", "eval", "device")
PRESETS = ("experiment", "debug")
"""Groups whose options write to the whole config and leave no key of their own."""


def top_level_keys() -> list[str]:
    """Every key that a config may have at its top."""
    return sorted({*VALUES, *PLACES, *(key.split(".")[0] for key in MAPPINGS)})


def mappings_of(target: str) -> dict[str, Place]:
    """Keys inside of a component that hold components by name."""
    return PART_MAPPINGS | PART_MAPPINGS_OF.get(target, {})


def places_of(command: str | None) -> dict[str, Place]:
    """Top-level keys that hold one component, of a job or of a command."""
    if command is None:
        return PLACES
    chosen = {group: Place((group,)) for group in CHOSEN_BY.get(command, {}).values()}
    return {**PLACES, command: Place(("settings",), only=f"settings/{command}"), **chosen}
