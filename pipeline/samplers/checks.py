"""Check samplers against the data sets that they draw from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock.core.registry import checks, value_at
from penstock.core.user_errors import Problem
from penstock.pipeline.config.libraries import resolve_class
from penstock.pipeline.mixes import MIX

_TORCH = "torch.utils.data."


@checks("dataset/torch", needs=("dataset.target",))
def class_of_torch(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a class that is missing, and arguments that it does not accept."""
    node = config["dataset"]
    try:
        found = resolve_class(node["target"], bases=(f"{_TORCH}Dataset",))
    except ValueError as error:
        text = f"{error}; type dataset.target=my_module.MyDataset"
        yield Problem("dataset.target", f"{text} (for a file, add imports=[./my_module.py])")
        return
    for name in ("args", "val_args", "test_args"):
        if isinstance(given := node.get(name), Mapping):
            try:
                inspect.signature(found).bind(**{**(node.get("args") or {}), **given})
            except TypeError as error:
                names = ", ".join(inspect.signature(found).parameters)
                yield Problem(f"dataset.{name}", f"{found.__qualname__} takes ({names}): {error}")


@checks("dataset/stream", "dataset/torch", needs=("sampler", "dataset.target"))
def order_of_stream(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a sampler with random access for a stream."""
    sampler = config["sampler"]["_target_"]
    if sampler != "sampler/sequential" and _is_stream(config["dataset"]):
        # A task often chooses the sampler of identities.
        remedy = "dataset=image_folder" if sampler == "sampler/identity" else "sampler=sequential"
        text = f"{sampler} needs random access, and a stream is read in its own order"
        yield Problem("sampler", f"{text}; type {remedy}")


@checks("sampler/mix", MIX, needs=("dataset", "sampler", "dataset.sources"))
def sources_of_mix(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse sources that cannot be mixed, and a sampler other than `sampler/mix`."""
    sampler, dataset = config["sampler"]["_target_"], config["dataset"]
    if dataset["_target_"] != MIX:
        text = "sampler/mix draws from several data sets, and one is given; type sampler=random"
        yield Problem("sampler", f"{text}, or dataset=mix dataset.sources.a.dataset=image_folder")
        return
    sources = {name: source for name, source in dataset["sources"].items() if source}
    if all(source.get("weight") == 0 for source in sources.values()):
        text = "no source with a weight; type dataset.sources.<name>.dataset=image_folder"
        yield Problem("dataset.sources", text)
        return
    targets = {name: value_at(source, "dataset._target_") for name, source in sources.items()}
    streams = [n for n in targets if targets[n] == MIX or _is_stream(sources[n].get("dataset"))]
    for key in (f"dataset.sources.{name}.dataset" for name in streams):
        yield Problem(key, f"a source needs random access; type {key}=webdataset")
    if sampler != "sampler/mix" and not streams:
        key = f"dataset.sources.{next(iter(sources))}.sampler={sampler.rpartition('/')[2]}"
        text = f"{sampler} given, expected sampler/mix; type sampler=mix, and for a source {key}"
        yield Problem("sampler", text)


def _is_stream(dataset: Mapping[str, Any] | None) -> bool:
    target = (dataset or {}).get("_target_")
    if dataset and target == "dataset/torch":
        with suppress(ValueError):  # map-style, or reported with the class
            resolve_class(str(dataset.get("target")), bases=(f"{_TORCH}IterableDataset",))
            return True
    return bool(target == "dataset/stream")
