"""Places of components in a config, and the kinds that each accepts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any

from annotated_types import Ge, Lt

from penstock.core import registry
from penstock.core.contracts import CallbackCapabilities, capabilities_of
from penstock.datasets.mix import with_keys_of_source
from penstock.pipeline.config.errors import Problem, listing, nearest
from penstock.pipeline.config.values import given


@dataclass(frozen=True, slots=True)
class Place:
    """A key that holds a component.

    Attributes:
        kinds: Accepted groups of the registry and families of the allow-list.
        nullable: null is accepted and means none.
        only: The one target that is accepted, where there is only one.
        named: It holds any number of components, by name.
        step: They are steps of a stack, which may say ``_after_``.
        implied: The target defaults to `only`.
        given: Arguments that the run fills in unless the config gives them.
        beside: Settings whose values may be mixed with the component's own arguments.
    """

    kinds: tuple[str, ...]
    nullable: bool = False
    only: str | None = None
    named: bool = False
    step: bool = False
    implied: bool = False
    given: tuple[str, ...] = ()
    beside: str | None = None


PLACES: dict[str, Place] = {
    "dataset": Place(("dataset",)),
    "task": Place(("task",)),
    "sampler": Place(("sampler",)),
    "collate": Place(("collate",)),
    "loader": Place(("settings",), only="settings/loader"),
    "model": Place(("model",)),
    "optimizer": Place(("optimizer", "torch.optim"), beside="settings/parameters"),
    "scheduler": Place(
        ("scheduler", "torch.optim.lr_scheduler"), nullable=True, beside="settings/warmup"
    ),
    "trainer": Place(("settings",), only="settings/trainer"),
    "logger": Place(("logger",), nullable=True, named=True),
    "callback": Place(("callback",), nullable=True, named=True),
    "run": Place(("settings",), nullable=True, only="settings/run", implied=True),
}
"""Top-level keys that hold components."""

_OF_SAMPLES = Place(
    ("transform", "albumentations", "torchvision.transforms.v2"),
    nullable=True, named=True, step=True,
)  # fmt: skip
AUGMENT: dict[str, Place] = {
    "train": _OF_SAMPLES,
    "eval": _OF_SAMPLES,
    "device": Place(("batch_transform",), nullable=True, named=True, step=True),
    "boxes": Place(("settings",), nullable=True, only="settings/boxes"),
    "keypoints": Place(("settings",), nullable=True, only="settings/keypoints"),
}
"""Keys of `augment`: its stacks, and what happens to targets of these kinds."""

TARGETS = ("boxes", "keypoints")

PARTS: dict[str, Place] = {
    "storage": Place(("storage",)),
    "source": Place(("source",)),
    "decode": Place(("decode",)),
    "cache": Place(("cache",), nullable=True),
    "annotations": Place(("annotations",), nullable=True),
    "tasks": Place(("task",), nullable=True, named=True),
}
"""Keys inside of a component (a dataset, a cache, a task) that hold components of their own."""

LIES_IN = ("storage", "source")
"""Parts of which a data set takes one or none."""

PARTS_OF: dict[str, dict[str, Place]] = {
    "settings/source": {
        "dataset": Place(("dataset",)),
        "sampler": Place(("sampler",), nullable=True),
    },
    "model/module": {"module": Place(("torch.nn",), given=("num_classes",))},
    "scheduler/sequence": {
        "schedules": Place(("scheduler", "torch.optim.lr_scheduler"), nullable=True, named=True)
    },
    "dataset/mix": {
        "sources": Place(
            ("settings",), nullable=True, only="settings/source", named=True, implied=True
        )
    },
}
"""The same inside of one component alone."""

STEPS = ("augment.train", "augment.eval", "augment.device")
NAMED = (*STEPS, "logger", "callback", "task.tasks", "dataset.sources", "scheduler.schedules")
"""Full keys of what holds components by name, and of the stacks among them."""

VALUES: dict[str, Any] = {
    "imports": list[str],
    "seed": Annotated[int, Ge(0), Lt(2**63)],
    "data_dir": str,
    "outputs": str,
}
"""Top-level keys that hold a value."""

CHOSEN_BY: dict[str, dict[str, str]] = {"pack": {"to": "writer"}}
"""By command: settings that choose an option of a top-level group.

``pack.to=lmdb`` chooses ``writer=lmdb``, whose arguments are ``writer.part_records=...``.
"""

REFUSED_IN_MIX = ("mix", "stream")
"""Options of ``dataset`` that cannot be a source of a mix."""

AROUND = ("outputs", "run", "logger")
EXECUTION = {
    "dataset": ["cache"],
    "loader": (
        "engine num_workers prefetch_factor pin_memory persistent_workers across_epochs timeout_s "
        "multiprocessing_context resources affinity nice max_error_rate"
    ).split(),
    "trainer": (
        "resume resume_anyway progress timeout_s save checkpoint_every checkpoint_seconds log_every"
    ).split(),
}
"""Keys by group that a resumed run may change: they decide how a run computes, not its results."""

LENGTH = ("max_epochs", "max_steps")
"""Settings of the trainer that limit the length of a run; a resumed run may change them."""


def watching(config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the callbacks, by name, that only watch a run."""
    nodes = config.get("callback") or {}
    return {name: node for name, node in nodes.items() if not node or _declared(node).watches}


def lengths_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """List the limits of the length of a run by key; null means unlimited."""
    lengths = {f"trainer.{name}": config["trainer"].get(name) for name in LENGTH}
    for name, node in (config.get("callback") or {}).items():
        for limit in _declared(node).limits if node else ():
            lengths[f"callback.{name}.{limit}"] = node.get(limit)
    return lengths


def _declared(callback: Mapping[str, Any]) -> CallbackCapabilities:
    found = registry.find(str(callback.get("_target_")))
    return capabilities_of(found.target if found else None, CallbackCapabilities)


NOT_PIXELS = frozenset(
    (
        "_target_ storage source cache annotations val_fraction val_path test_path test_args "
        "worker_init_fn"
    ).split()
)
"""Arguments of a dataset that change no pixel."""

PRESETS = ("experiment", "debug")
"""Groups whose options write to the whole config and leave no key of their own."""


def top_level_keys() -> list[str]:
    """List every key that a config may have at its top."""
    return sorted({*VALUES, *PLACES, "augment"})


def places_of(command: str | None) -> dict[str, Place]:
    """Find the top-level keys that hold components, of a job or of a command."""
    if command is None:
        return PLACES
    chosen = {group: Place((group,)) for group in CHOSEN_BY.get(command, {}).values()}
    return {**PLACES, command: Place(("settings",), only=f"settings/{command}"), **chosen}


def wrong_order(steps: Mapping[str, Any], key: str) -> Iterator[Problem]:
    """Find mistakes in the order of steps, which ``_after_`` gives.

    Args:
        steps: Nodes by name.
        key: The key of the stack.
    """
    afters = {
        name: str(node["_after_"])
        for name, node in steps.items()
        if isinstance(node, dict) and node.get("_after_") is not None
    }
    for name, after in afters.items():
        if after not in steps or after == name:
            others = [other for other in steps if other != name]
            near = nearest(after, others)
            remedy = f"; type {key}.{name}._after_={near}" if near else ""
            yield Problem(
                f"{key}.{name}._after_",
                f"no step named {given(after)}, the others are {listing(others)}{remedy}",
            )
    known = {name: [after] for name, after in afters.items() if after in steps and after != name}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        circle = sorted({*error.args[1]})
        first = circle[0]
        yield Problem(
            f"{key}.{first}._after_",
            f"the steps {', '.join(circle)} wait for one another; type ~{key}.{first}._after_",
        )


MIX = "dataset/mix"
_RANDOM = {"_target_": "sampler/random"}


def sources_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Make the configs of a mix's sources by name, each with a seed of its own.

    Two sources of equal size would otherwise be shuffled in the same way.
    """
    node = config["dataset"]
    if node["_target_"] != MIX:
        return {}
    return {
        name: {
            **config,
            "dataset": source["dataset"],
            "sampler": source.get("sampler") or _RANDOM,
            "seed": _seed_of(config["seed"], name),
        }
        for name, source in node["sources"].items()
        if source
    }


@contextmanager
def said_of_source(name: str) -> Iterator[None]:
    """Add the name of a source to its errors, and name its keys in full.

    Raises:
        ValueError: With the name of the source.
    """
    try:
        yield
    except ValueError as error:
        text = f"source {name!r}: {with_keys_of_source(str(error), name)}"
        raise ValueError(text) from error


def _seed_of(seed: int, name: str) -> int:
    """Derive a seed, 0 .. 2^63 - 1, that the other sources have not, however many there are."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
