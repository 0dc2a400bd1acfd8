"""Check samplers against the data sets that they draw from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock.core import registry
from penstock.core.registry import checks, value_at
from penstock.core.user_errors import Problem
from penstock.pipeline.config.libraries import resolve_class
from penstock.pipeline.mixes import MIX

_TORCH = "torch.utils.data."


@checks("sampler/identity", "sampler/balanced_batch", needs=("dataset.storage", "sampler.column"))
def labels_of_classes(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse to balance classes of data without labels."""
    storage = config["dataset"].get("storage") or {}
    if config["sampler"]["column"] == "label" and storage.get("labels", "") is None:
        remedy = "dataset.storage.labels=folder, or sampler.column=identity"
        text = f"'label' given, the data is unlabelled; type {remedy}"
        yield Problem("sampler.column", f"{text} with dataset/annotations=filename")


_SIZES = ("sampler.identities", "sampler.images_per_identity", "loader.batch_size")


@checks("sampler/identity", needs=_SIZES)
def size_of_batches(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a batch size that identities do not fill."""
    identities, images, batch_size = (value_at(config, key) for key in _SIZES)
    identities = identities or max(batch_size // images, 1)
    if (size := identities * images) != batch_size:
        each = f"{identities} identities with {images} images each (sampler.images_per_identity)"
        text = f"{batch_size} given, {each} are {size}; type loader.batch_size={size}"
        yield Problem("loader.batch_size", text)


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


def _streams(dataset: Mapping[str, Any]) -> bool:
    if dataset["_target_"] == "dataset/torch":
        with suppress(ValueError):  # map-style, or reported with the class
            resolve_class(str(dataset.get("target")), bases=(f"{_TORCH}IterableDataset",))
            return True
    return bool(dataset["_target_"] == "dataset/stream")


@checks("dataset/stream", "dataset/torch", needs=("sampler", "dataset.target"))
def order_of_stream(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a sampler with random access for a stream."""
    sampler = config["sampler"]["_target_"]
    if sampler != "sampler/sequential" and _streams(config["dataset"]):
        text = f"{sampler} needs random access, and a stream is read in its own order"
        indexed = sampler == "sampler/identity"  # often the choice of the task
        remedy = "dataset=image_folder" if indexed else "sampler=sequential"
        yield Problem("sampler", f"{text}; type {remedy}")


@checks("sampler/mix", needs=("dataset",))
def mix_of_one(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse the sampler of a mix for a single data set."""
    if value_at(config, "dataset._target_") != MIX:
        text = "sampler/mix draws from several data sets, and one is given"
        sources = "dataset=mix dataset.sources.a.dataset=image_folder"
        yield Problem("sampler", f"{text}; type sampler=random, or {sources}")


@checks(MIX, needs=("dataset.sources", "sampler"))
def sources_of_mix(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse sources that cannot be mixed, weights that are all zero, and a different sampler."""
    sources = {name: each for name, each in config["dataset"]["sources"].items() if each}
    if not sources:
        text = "no source given; type dataset.sources.<name>.dataset=image_folder"
        yield Problem("dataset.sources", text)
        return
    refused = [each for name in sources for each in _unmixable(name, sources[name])]
    yield from refused
    sampler, first = config["sampler"]["_target_"], next(iter(sources))
    if sampler != "sampler/mix" and not refused:
        of_source = f"dataset.sources.{first}.sampler={sampler.rpartition('/')[2]}"
        text = f"{sampler} given, expected sampler/mix; type sampler=mix"
        yield Problem("sampler", f"{text}, and for a source {of_source}")
    if all(source.get("weight") == 0 for source in sources.values()):
        text = f"all weights are 0; type dataset.sources.{first}.weight=1"
        yield Problem("dataset.sources", text)


def _unmixable(name: str, source: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a data set without random access, a mix, and a sampler of whole batches."""
    key, dataset = f"dataset.sources.{name}", source.get("dataset")
    if value_at(source, "dataset._target_") == MIX:
        text = "a mix given, expected one data set; list its sources beside this one"
        yield Problem(f"{key}.dataset", text)
    elif isinstance(dataset, Mapping) and "_target_" in dataset and _streams(dataset):
        text = f"{dataset['_target_']} is a stream, and a mix needs random access"
        yield Problem(f"{key}.dataset", f"{text}; type {key}.dataset=webdataset")
        return
    sampler = str(value_at(source, "sampler._target_"))
    component = registry.find(sampler)
    taken = inspect.signature(component.target).parameters if component else {}
    # A torch sampler shows only when it draws whether it makes batches.
    if sampler != "sampler/torch" and {"batch_size", "mixed"} & taken.keys():
        text = f"{sampler} given, a source needs single draws; type {key}.sampler=random"
        yield Problem(f"{key}.sampler", text)
