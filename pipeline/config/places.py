"""Places of components in a config, and the kinds that each accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Lt

from penstock.core import registry
from penstock.core.contracts import Callback
from penstock.pipeline.config.errors import Problem, type_nearest
from penstock.pipeline.config.values import REQUIRED, Argument
from penstock.transforms.cpu.stack import ordered_steps


@dataclass(frozen=True, slots=True)
class Place:
    """A key that holds a component.

    Attributes:
        kinds: Accepted groups of the registry, families of the allow-list, or one target.
        nullable: null is accepted and means none.
        named: It holds any number of components, by name, or null.
        implied: Without a target, it is the one that is accepted.
        given: Arguments that the run fills in unless the config gives them.
        beside: Settings whose values may be mixed with the component's own arguments.
    """

    kinds: tuple[str, ...]
    nullable: bool = False
    named: bool = False
    implied: bool = False
    given: tuple[str, ...] = ()
    beside: str | None = None


_SCHEDULERS = ("scheduler", "torch.optim.lr_scheduler")
PLACES: dict[str, Place] = {
    "dataset": Place(("dataset",)),
    "task": Place(("task",)),
    "sampler": Place(("sampler",)),
    "collate": Place(("collate",)),
    "loader": Place(("settings/loader",)),
    "model": Place(("model",)),
    "optimizer": Place(("optimizer", "torch.optim"), beside="settings/parameters"),
    "scheduler": Place(_SCHEDULERS, nullable=True, beside="settings/warmup"),
    "trainer": Place(("settings/trainer",)),
    "logger": Place(("logger",), named=True),
    "callback": Place(("callback",), named=True),
    "run": Place(("settings/run",), nullable=True, implied=True),
}
"""Top-level keys that hold components."""

_TRANSFORMS = ("transform", "albumentations", "torchvision.transforms.v2")
AUGMENT: dict[str, Place] = {
    "train": Place(_TRANSFORMS, named=True),
    "eval": Place(_TRANSFORMS, named=True),
    "device": Place(("batch_transform",), named=True),
    "boxes": Place(("settings/boxes",), nullable=True),
    "keypoints": Place(("settings/keypoints",), nullable=True),
}
"""Keys of `augment`: its stacks, and what happens to targets of these kinds."""

TARGETS = ("boxes", "keypoints")

PARTS: dict[str, Place] = {
    "storage": Place(("storage",)),
    "source": Place(("source",)),
    "decode": Place(("decode",)),
    "cache": Place(("cache",), nullable=True),
    "annotations": Place(("annotations",), nullable=True),
    "tasks": Place(("task",), named=True),
}
"""Keys inside of a component (a dataset, a cache, a task) that hold components of their own."""

PARTS_OF: dict[str, dict[str, Place]] = {
    "settings/source": {
        "dataset": Place(("dataset",)),
        "sampler": Place(("sampler",), nullable=True),
    },
    "model/module": {"module": Place(("torch.nn",), given=("num_classes",))},
    "scheduler/sequence": {"schedules": Place(_SCHEDULERS, named=True)},
    "dataset/mix": {"sources": Place(("settings/source",), named=True, implied=True)},
}
"""The same inside of one component alone."""

STEPS = ("augment.train", "augment.eval", "augment.device")
NAMED = (*STEPS, "logger", "callback", "task.tasks", "dataset.sources", "scheduler.schedules")
"""Full keys of what holds components by name, and of the stacks among them."""

VALUES: dict[str, Argument] = {
    "imports": Argument(list[str], []),
    "seed": Argument(Annotated[int, Ge(0), Lt(2**63)], REQUIRED),
    "data_dir": Argument(str, REQUIRED),
    "outputs": Argument(str, REQUIRED),
}
"""Top-level keys that hold a value."""

CHOSEN_BY: dict[str, dict[str, str]] = {"pack": {"to": "writer"}}
"""By command: settings that choose an option of a top-level group.

``pack.to=lmdb`` chooses ``writer=lmdb``, whose arguments are ``writer.part_records=...``.
"""

PRESETS = ("experiment", "debug")
"""Groups whose options write to the whole config and leave no key of their own."""


def watching(config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the callbacks, by name, that only watch a run."""
    nodes = config.get("callback") or {}
    return {name: node for name, node in nodes.items() if not node or declared(node).watches}


def declared(callback: Mapping[str, Any]) -> type[Callback]:
    """Return the class of a callback, whose attributes tell `watches` and `limits`."""
    found = registry.find(str(callback.get("_target_")))
    target: Any = found and found.target
    return target if isinstance(target, type) and issubclass(target, Callback) else Callback


def top_level_keys() -> list[str]:
    """List every key that a config may have at its top."""
    return sorted({*VALUES, *PLACES, "augment"})


def places_of(command: str | None) -> dict[str, Place]:
    """Find the top-level keys that hold components, of a job or of a command."""
    own = {command: Place((f"settings/{command}",))} if command else {}
    chosen = {group: Place((group,)) for group in CHOSEN_BY.get(command or "", {}).values()}
    return PLACES | own | chosen | {"augment": Place(())}


def wrong_order(steps: Mapping[str, Any], key: str) -> Iterator[Problem]:
    """Find mistakes in the order of steps, which ``_after_`` gives.

    Args:
        steps: Nodes by name.
        key: The key of the stack.
    """
    nodes = {name: node if isinstance(node, dict) else {} for name, node in steps.items()}
    try:
        ordered_steps(nodes)
    except ValueError as error:
        afters = {name: str(node["_after_"]) for name, node in nodes.items() if "_after_" in node}
        unknown = {name: after for name, after in afters.items() if after not in nodes}
        name, after = min((unknown or afters).items())
        at, others = f"{key}.{name}._after_", nodes.keys() - {name} if unknown else ()
        yield Problem(at, f"{error}{type_nearest(after, others, f'{at}={{}}')}")
