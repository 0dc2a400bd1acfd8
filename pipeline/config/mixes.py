"""Mixes of data sets that cannot work."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from datasets.mix_source import with_keys_of_source
from pipeline import registry
from pipeline.config.errors import Problem
from pipeline.config.sources import MIX, sources_of

Check = Callable[[dict[str, Any], set[str]], list[Problem]]

_NEAR = {"stream": "webdataset", "torch": "image_folder"}


def mixing(config: dict[str, Any]) -> Iterator[Problem]:
    """A mix under another sampler, its sampler elsewhere, and weights that draw nothing."""
    sampler = config["sampler"]["_target_"]
    if config["dataset"]["_target_"] != MIX:
        if sampler == "sampler/mix":
            yield Problem("sampler", "sampler/mix draws from several data sets, and this is one; "
                          "type sampler=random, or dataset=mix")  # fmt: skip
        return
    if sampler != "sampler/mix":
        name = sampler.partition("/")[2] or sampler
        source = next(iter(config["dataset"]["sources"]), "<name>")
        yield Problem("sampler", f"{sampler} given, and a mix is its own sampler; type "
                      f"sampler=mix, and for one of its sources "
                      f"dataset.sources.{source}.sampler={name}")  # fmt: skip
    sources = config["dataset"]["sources"]
    if not any(sources.values()):
        yield Problem("dataset.sources", "no source given, accepts data sets by name; type "
                      "dataset.sources.<name>.dataset=image_folder")  # fmt: skip
        return
    weights = {
        name: source["weight"]
        for name, source in sources.items()
        if source and isinstance(source.get("weight"), int | float)
    }
    for name, weight in weights.items():
        if weight == math.inf:
            key = f"dataset.sources.{name}.weight"
            yield Problem(key, f"{weight} given, accepts a number of at least 0; type {key}=1")
    if weights and not any(weights.values()):
        first = next(iter(weights))
        yield Problem("dataset.sources", f"all weights are 0 ({', '.join(weights)}), and nothing "
                      f"would be drawn; type dataset.sources.{first}.weight=1")  # fmt: skip


def of_sources(config: dict[str, Any], wrong: Collection[str], check: Check) -> Iterator[Problem]:
    """What is wrong with a source: by itself, and in a mix.

    Args:
        config: A config, as far as it could be checked.
        wrong: Keys that have been reported.
        check: Finds what is wrong with a data set alone, in its config.
    """
    nodes = config["dataset"].get("sources") or {}
    right = {name: nodes[name] for name in nodes if not _is_wrong(name, wrong)}
    config = {**config, "dataset": {**config["dataset"], "sources": right}}
    for name, source in sources_of(config).items():
        at = f"dataset.sources.{name}"
        refused = list(_refused(at, source))
        yield from refused
        if refused:
            continue
        known = {key.removeprefix(f"{at}.") for key in wrong if key.startswith(f"{at}.")}
        for problem in check(source, known):
            if problem.key == "sampler":  # of a torch data set that is iterable
                yield _stream(at, source["dataset"])
            else:
                message = with_keys_of_source(problem.message, name)
                yield Problem(f"{at}.{problem.key}", message)


def _is_wrong(name: str, wrong: Collection[str]) -> bool:
    """Whether it is not known what a source is, or its sampler."""
    at = f"dataset.sources.{name}."
    parts = (f"{at}{part}{end}." for part in ("dataset", "sampler") for end in ("", "._target_"))
    return any(part.startswith(f"{key}.") for part in parts for key in wrong)


def _refused(at: str, source: dict[str, Any]) -> Iterator[Problem]:
    """A kind of data set or of sampler that has no place in a mix."""
    dataset, sampler = source["dataset"]["_target_"], source["sampler"]["_target_"]
    if dataset == MIX:
        yield Problem(f"{at}.dataset", "a mix given, accepts one data set; give its sources here, "
                      "with weights multiplied by its own")  # fmt: skip
    elif dataset == "dataset/stream":
        yield _stream(at, source["dataset"])
    component = registry.find(sampler)
    if component is None or dataset == "dataset/stream":
        return
    taken = inspect.signature(component.target).parameters
    if "batch_size" in taken or "mixed" in taken:
        why = "makes whole batches" if "batch_size" in taken else "draws from several data sets"
        yield Problem(f"{at}.sampler", f"{sampler} given, which {why}, and a mix takes the draws "
                      f"of its sources apart; type {at}.sampler=random")  # fmt: skip


def _stream(at: str, dataset: dict[str, Any]) -> Problem:
    target = dataset["_target_"]
    near = _NEAR.get(target.partition("/")[2], "image_folder")
    what = dataset.get("target", target)
    return Problem(f"{at}.dataset", f"{what} is a stream, which is read in its own order, and a "
                   f"mix draws by index; type {at}.dataset={near}")  # fmt: skip
