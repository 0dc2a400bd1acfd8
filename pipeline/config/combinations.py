"""Combinations of components that cannot work, each part being right by itself."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core import registry
from penstock.core.contracts import ModelCapabilities
from penstock.datasets.files.access import is_object_store, is_url
from penstock.datasets.mix import with_keys_of_source
from penstock.pipeline.config.errors import Problem, listing, nearest, nearest_path
from penstock.pipeline.config.libraries import resolve_class
from penstock.pipeline.config.places import MIX, sources_of
from penstock.pipeline.config.signatures import signature_of
from penstock.pipeline.config.values import fits, given, mistake, shown
from penstock.pipeline.schedulers.units import PLATEAU, better, takes_interval

GENERATED = ("demo", "demo_sequences", "demo_sounds", "demo_table", "demo_prices")
"""Names of generated data, in place of a path."""

_NEAR = {"stream": "webdataset", "torch": "image_folder"}
_OF_COLOURS = tuple(f"batch_transform/{name}" for name in ("color_jitter", "grayscale", "kornia"))
_PATTERN = re.compile(r"[*?\[{]|://")

Rule = Callable[[dict[str, Any]], Iterator[Problem]]


def check_combinations(config: dict[str, Any], wrong: Collection[str] = ()) -> list[Problem]:
    """Find every combination in a config that cannot work.

    Args:
        config: The config as far as it could be checked.
        wrong: Keys that have been reported; rules about them or what is below are left out.
    """
    found = _of_rules(config, wrong, RULES)
    if not any(_touches(key, bad) for key in ("dataset", "dataset.sources") for bad in wrong):
        found += _of_sources(config, wrong)
    return found


def _of_rules(
    config: dict[str, Any], wrong: Collection[str], rules: dict[Rule, tuple[str, ...]]
) -> list[Problem]:
    return [
        problem
        for rule, keys in rules.items()
        if not any(_touches(key, bad) for key in keys for bad in wrong)
        for problem in rule(config)
    ]


def _touches(key: str, wrong: str) -> bool:
    """Tell whether a mistake at `wrong` leaves nothing to say about `key`."""
    return wrong == "" or f"{key}.".startswith(f"{wrong}.") or wrong == f"{key}._target_"


def missing_data(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a path that does not exist; demos are generated, a pattern is no path."""
    dataset = config["dataset"]
    paths = {"dataset.storage.path": (dataset.get("storage") or {}).get("path")}
    parts = {f"dataset.{name}": dataset.get(name) for name in ("val_path", "test_path")}
    source = dataset.get("source")
    if source is not None and not {"path", "topic"} & source.keys():
        for key, part in parts.items():
            if part is not None:
                yield Problem(key, f"{part!r} given, and this stream has no parts: "
                              + ("nothing validates" if "queue" in source else
                                 "keys tell who validates (dataset.val_fraction)")
                              + f"; type {key}=null")  # fmt: skip
    elif "path" in (dataset.get("storage") or source or {"path"}):  # else they are tables
        paths |= parts
    for key, path in paths.items():
        if path == "":
            yield _nothing(key)
        elif isinstance(path, str) and path not in GENERATED and not _PATTERN.search(path):
            if not Path(path).expanduser().exists():
                parent = Path(path).expanduser().absolute()
                while not parent.exists():
                    parent = parent.parent
                near = nearest_path(path)
                demo = key == "dataset.storage.path" and near is None
                yield Problem(
                    key,
                    f"{path!r} not found; the nearest existing folder is {str(parent)!r}; type "
                    + (shlex.quote(f"{key}={near}") if near else f"{key}=<folder or file>")
                    + ", or demo for the generated set" * demo,
                )


_OF_THIS_MACHINE = {
    "data_dir": "data",
    "dataset.cache.path": "null",
    "dataset.decode.statistics": "table.json",
    "predict.output": "predictions.parquet",
    "evaluate.output": "evaluation.json",
    "export.output": "model.onnx",
    "preview.path": "preview.png",
}
"""Paths that no URL may stand for, and what may be typed."""


def paths_here(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse folders of an empty name, which would be the working directory, and some URLs."""
    for key in ("data_dir", "outputs"):
        if config[key] == "":
            yield _nothing(key)
    for key, here in _OF_THIS_MACHINE.items():
        value: Any = config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if is_url(value):
            what = f"{value!r} given, accepts a path of this machine"
            yield Problem(key, f"{what}; type {key}={here}")
    if is_url(outputs := config["outputs"]) and not is_object_store(outputs):
        what = f"{outputs!r} given, accepts a folder, or the s3://, gs:// or az:// of a store"
        yield Problem("outputs", f"{what}; type outputs=outputs")
    if config["trainer"].get("resume") == "":
        yield _nothing("trainer.resume", instead="trainer.resume=null to start anew")
    if config["trainer"].get("init_from") == "":
        yield _nothing("trainer.init_from", instead="trainer.init_from=null for none")


def _nothing(key: str, *, instead: str | None = None) -> Problem:
    here = instead or f"{key}=. for the working directory"
    return Problem(
        key, f"'' given, which names no folder (a variable that is not set?); type {here}"
    )


def torch_dataset(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a torch data set that is not there, and a stream whose sampler needs an index."""
    node = config["dataset"]
    if node["_target_"] != "dataset/torch":
        return
    key = "dataset.target"
    try:
        found = resolve_class(node["target"], bases=("torch.utils.data.Dataset",))
    except ValueError as error:
        yield Problem(key, f"{error}; type {key}=my_module.MyDataset (a file: add "
                      f"imports=[./my_module.py])")  # fmt: skip
        return
    for name in ("args", "val_args", "test_args"):
        yield from _arguments(found, node.get(name), f"dataset.{name}")
    sampler = config["sampler"]["_target_"]
    if _is_iterable(found) and sampler != "sampler/sequential":
        yield Problem("sampler", f"{sampler} given, and {node['target']} is a stream, which is "
                      f"read in its own order; type sampler=sequential")  # fmt: skip


def _is_iterable(found: type) -> bool:
    return any(base.__qualname__ == "IterableDataset" for base in found.__mro__)


def suit_iterable(config: dict[str, Any], chosen: Collection[str]) -> None:
    """Give an IterableDataset the sampler and the schedule of a stream, where none was chosen.

    Args:
        config: The plain config, not checked yet; changed.
        chosen: Groups that somebody made a choice of.
    """
    node = config.get("dataset") or {}
    if node.get("_target_") != "dataset/torch" or not isinstance(node.get("target"), str):
        return
    try:
        found = resolve_class(node["target"], bases=("torch.utils.data.Dataset",))
    except ValueError:
        return  # which is said where it is checked
    if not _is_iterable(found):
        return
    if "sampler" not in chosen:
        config["sampler"] = {"_target_": "sampler/sequential"}
    if "scheduler" not in chosen and not (config.get("trainer") or {}).get("max_steps"):
        config["scheduler"] = {"_target_": "scheduler/none"}


def stream(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a stream under a sampler, one that is not there, and one that would be read twice."""
    dataset = config["dataset"]
    if dataset["_target_"] != "dataset/stream":
        return
    sampler = config["sampler"]["_target_"]
    if sampler != "sampler/sequential":
        yield Problem("sampler", f"{sampler} needs a data set with an index, and a stream is read "
                      f"in its own order; type sampler=sequential, and let it shuffle by "
                      f"dataset.shuffle and dataset.shuffle_window")  # fmt: skip
    source = dataset.get("source") or {}
    for name, needed in (("lanes", 1), ("shuffle_window", 0)) if "queue" in source else ():
        if dataset.get(name) != needed:
            yield Problem(f"dataset.{name}", f"{dataset.get(name)} given, and a queue is read in "
                          f"its own order, so that it can be said what was read; type "
                          f"dataset.{name}={needed}")  # fmt: skip
    path = source.get("path")
    if not isinstance(path, str) or path == "demo":
        return
    from penstock.datasets.files.byte_streams import is_read_once, missing_path

    key = "dataset.source.path"
    try:
        if missing_path(path):
            near = nearest_path(path)
            what = (
                shlex.quote(f"{key}={near}")
                if near
                else (f"{key}=<file, folder or pattern>, or demo for the generated set")
            )
            yield Problem(key, f"{path!r} does not exist; type {what}")
    except ValueError as error:
        yield Problem(key, str(error))
    epochs = config["trainer"].get("max_epochs")
    if is_read_once(path) and epochs != 1:
        yield Problem("trainer.max_epochs", f"{epochs} given, and {path!r} can be read once; type "
                      f"trainer.max_epochs=1")  # fmt: skip


def _arguments(found: type, arguments: Any, key: str) -> Iterator[Problem]:
    """Refuse arguments that the user's class does not take, or lacks."""
    if not isinstance(arguments, dict):
        return
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        names = ", ".join(inspect.signature(found).parameters)
        yield Problem(key, f"{found.__qualname__} takes ({names}): {error}")


def empty_run(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse nothing to decode with where bytes are read."""
    dataset = config["dataset"]
    if "storage" in dataset and dataset.get("decode", ...) is None:
        yield Problem("dataset.decode", "null given, but records must become samples; type "
                      "dataset/decode=image")  # fmt: skip


def caches(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a cache of what is held in memory anyway, and amounts that are none."""
    from penstock.datasets.caches.limits import parse_bytes

    dataset = config["dataset"]
    cache = dataset.get("cache")
    if not isinstance(cache, dict):
        return
    in_memory = cache.get("_target_") == "cache/ram"
    if in_memory and dataset["_target_"] == "dataset/eager":
        yield Problem("dataset/cache", "ram given, but dataset=eager decodes everything into "
                      "memory once and reads nothing again; type dataset/cache=none")  # fmt: skip
    if in_memory or cache.get("_target_") == "cache/disk":
        try:
            parse_bytes(cache.get("max_bytes", 1), whole=1 << 40 if in_memory else None)
        except ValueError as error:
            text = str(error).partition(": ")[2]
            yield Problem("dataset.cache.max_bytes", f"{text}; type dataset.cache.max_bytes=4GB")


def classes_in_batches(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse batches of classes where there are none, and sizes that do not come out even."""
    sampler, storage = config["sampler"], config["dataset"].get("storage") or {}
    name = sampler["_target_"].partition("/")[2]
    if name not in ("identity", "balanced_batch"):
        return
    if sampler["column"] == "label" and storage.get("labels", "") is None:
        yield Problem("sampler.column", f"'label' given for sampler={name}, and the data has no "
                      f"labels; type dataset.storage.labels=folder, or sampler.column=identity "
                      f"with dataset/annotations=filename")  # fmt: skip
    batch_size = config["loader"].get("batch_size")
    if name != "identity" or not isinstance(batch_size, int):
        return
    together = sampler["images_per_identity"]
    size = (sampler["identities"] or max(batch_size // together, 1)) * together
    if size != batch_size:
        yield Problem("loader.batch_size", f"{batch_size} given, and {size // together} identities "
                      f"with {together} images each (sampler.images_per_identity) are {size}; type "
                      f"loader.batch_size={size}")  # fmt: skip


def schedule(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a schedule of epochs that is counted in steps, and one that looks the wrong way."""
    node, trainer = config["scheduler"] or {}, config["trainer"]
    target, interval = node.get("_target_"), trainer.get("scheduler_interval")
    if target and interval and not takes_interval(target, interval):
        yield Problem("trainer.scheduler_interval", f"{interval!r} given, and {target} counts "
                      f"epochs; type trainer.scheduler_interval=epoch")  # fmt: skip
    mode, monitor = node.get("mode"), trainer.get("monitor")
    if target != PLATEAU or mode not in ("min", "max") or not monitor:
        return
    wanted = trainer.get("monitor_mode") or better(monitor)
    if mode != wanted:
        yield Problem("scheduler.mode", f"{mode!r} given, and of {monitor!r}, which is watched, "
                      f"{'more' if wanted == 'max' else 'less'} is better; leave it away, or type "
                      f"trainer.monitor_mode={mode}")  # fmt: skip


def sequence(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse schedules in a row without lengths, and such as cannot stand in one."""
    node = config["scheduler"] or {}
    if node.get("_target_") != "scheduler/sequence":
        return
    key, names = "scheduler.schedules", [name for name, each in node["schedules"].items() if each]
    lengths = node["lengths"]
    for name in names[:-1]:
        if name not in lengths:
            yield Problem(f"scheduler.lengths.{name}", f"missing, and another schedule follows it; "
                          f"type scheduler.lengths.{name}=0.3, a share of the run, or a "
                          f"count")  # fmt: skip
    for name in lengths:
        if name not in names[:-1]:
            why = "the last one has the rest" if name in names else f"there is {listing(names)}"
            near = nearest(name, [each for each in names[:-1] if each not in lengths])
            remedy = f"type scheduler.lengths.{near}=..." if near else f"leave {name} away"
            yield Problem(f"scheduler.lengths.{name}", f"{lengths[name]} given, and {why}; "
                          f"{remedy}")  # fmt: skip
    interval: Any = config["trainer"].get("scheduler_interval") or "step"
    for name in names:
        target = node["schedules"][name]["_target_"]
        if target in (PLATEAU, "scheduler/none", "scheduler/sequence"):
            yield Problem(f"{key}.{name}", f"{target} cannot stand in a sequence; type "
                          f"{key}.{name}=null")  # fmt: skip
        elif not takes_interval(target, interval):
            yield Problem(f"{key}.{name}", f"{target} counts epochs, and the sequence steps; type "
                          f"trainer.scheduler_interval=epoch")  # fmt: skip


def parameter_groups(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse groups of parameters without patterns, or with values that no optimizer takes."""
    node = config["optimizer"]
    signature = signature_of(node["_target_"])
    if isinstance(signature, str) or "groups" in signature.arguments:
        return
    known = signature.arguments
    for setting, argument in (("decay_norms", "weight_decay"), ("layer_decay", "lr")):
        if setting in node and setting not in known and argument not in known:
            yield Problem(f"optimizer.{setting}", f"{shown(node[setting])} given, and "
                          f"{node['_target_']} takes no {argument}; leave it away")  # fmt: skip
    for name, group in (node.get("groups") or {}).items():
        key = f"optimizer.groups.{name}"
        patterns = group.get("params")
        if not patterns or not fits(list[str], patterns):
            what = f"{given(patterns)} given" if "params" in group else "missing"
            yield Problem(f"{key}.params", f"{what}, accepts patterns of parameters' names; type "
                          f"{key}.params=[{patterns if isinstance(patterns, str) else 'head'}]",
                          )  # fmt: skip
        for argument, value in group.items():
            full, there = f"{key}.{argument}", ["params", *known]
            if argument not in there:
                near = nearest(argument, there)
                remedy = f"type {key}.{near}={shown(value)}" if near else f"leave {full} away"
                yield Problem(full, f"{given(value)} given, unknown key; a group accepts "
                              f"{listing(there)}; {remedy}")  # fmt: skip
            elif argument != "params" and (wrong := mistake(known[argument], value, full)):
                yield Problem(full, wrong)


def watched_validation(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse callbacks that watch the figures of a validation that there is not."""
    trainer = config["trainer"]
    off = {"validate_every": 1, "limit_val_batches": "null"}
    key = next((name for name in off if trainer.get(name) == 0), None)
    for name, node in config["callback"].items():
        found = registry.find(str(node.get("_target_"))) if node and key else None
        if found and "watched" in inspect.signature(found.target).parameters:
            remedy = f"type trainer.{key}={off[str(key)]}, or callback.{name}=null"
            yield Problem(f"callback.{name}", f"{found.target_name} watches what is validated, "
                          f"and with trainer.{key}=0 nothing is; {remedy}")  # fmt: skip


def crops_above_images(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a crop whose two sides exceed the short side that the images were resized to."""
    from penstock.transforms.cpu.stack import ordered_steps

    for stack in ("train", "eval"):
        short: tuple[str, int] | None = None
        try:
            steps = ordered_steps(config["augment"].get(stack) or {})
        except ValueError:  # reported with the step itself
            continue
        for name, step in steps.items():
            key, target = f"augment.{stack}.{name}", step.get("_target_")
            if target == "albumentations.SmallestMaxSize" and isinstance(step.get("max_size"), int):
                short = f"{key}.max_size", step["max_size"]
                continue
            sides: list[Any] = [step.get("height"), step.get("width")]
            crops = target in _CROPS and not step.get("pad_if_needed")
            if crops and short and all(isinstance(side, int) and side > short[1] for side in sides):
                variable = stack == "eval" and "eval_size" in config["augment"]
                larger = round(max(sides) * 256 / 224)  # the usual ratio
                remedy = "augment.eval_size" if variable else short[0]
                yield Problem(
                    key,
                    f"a crop of {sides[0]} x {sides[1]} does not fit into images whose short side "
                    f"is {short[1]} ({short[0]}); type {remedy}={larger}",
                )
            short = None


_CROPS = ("albumentations.CenterCrop", "albumentations.RandomCrop")


def colours_after_normalize(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse steps that compute with colours behind the one that takes the mean away."""
    from penstock.transforms.cpu.stack import ordered_steps

    try:
        steps = ordered_steps(config["augment"].get("device") or {})
    except ValueError:  # said of the step itself
        return
    normalized = None
    for name, node in steps.items():
        target = node.get("_target_")
        if target == "batch_transform/normalize":
            normalized = name
        elif normalized and target in _OF_COLOURS:
            yield Problem(f"augment.device.{name}", f"stands behind {normalized!r}, and computes "
                          f"with colours from 0 to 1; type "
                          f"augment.device.{normalized}._after_={name}")  # fmt: skip


def mixing(config: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a mix under another sampler, its sampler elsewhere, and weights that draw nothing."""
    sampler = config["sampler"]["_target_"]
    if config["dataset"]["_target_"] != MIX:
        if sampler == "sampler/mix":
            yield Problem("sampler", "sampler/mix draws from several data sets, and this is one; "
                          "type sampler=random, or dataset=mix")  # fmt: skip
        return
    sources = config["dataset"]["sources"]
    datasets = [source.get("dataset") or {} for source in sources.values() if source]
    kinds = {dataset.get("_target_") for dataset in datasets}
    if sampler != "sampler/mix" and "dataset/stream" not in kinds:  # which chose it, and is refused
        name = sampler.partition("/")[2] or sampler
        source = next(iter(sources), "<name>")
        yield Problem("sampler", f"{sampler} given, and a mix is its own sampler; type "
                      f"sampler=mix, and for one of its sources "
                      f"dataset.sources.{source}.sampler={name}")  # fmt: skip
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


def _of_sources(config: dict[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
    """Find what is wrong with a source: by itself, and in a mix.

    Args:
        config: A config, as far as it could be checked.
        wrong: Keys that have been reported.
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
        for problem in _of_rules(source, known, {rule: RULES[rule] for rule in _OF_DATA}):
            if problem.key == "sampler":  # of a torch data set that is iterable
                yield _stream(at, source["dataset"])
            else:
                message = with_keys_of_source(problem.message, name)
                yield Problem(f"{at}.{problem.key}", message)


def _is_wrong(name: str, wrong: Collection[str]) -> bool:
    """Tell whether it is not known what a source is, or its sampler."""
    at = f"dataset.sources.{name}."
    parts = (f"{at}{part}{end}." for part in ("dataset", "sampler") for end in ("", "._target_"))
    return any(part.startswith(f"{key}.") for part in parts for key in wrong)


def _refused(at: str, source: dict[str, Any]) -> Iterator[Problem]:
    """Refuse a kind of data set or of sampler that has no place in a mix."""
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
    if sampler == "sampler/torch":  # whether it makes batches shows when it draws
        return
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


_OF_DATA: tuple[Rule, ...] = (missing_data, torch_dataset, empty_run, caches)
"""Rules that hold of the sources of a mix too."""

RULES: dict[Rule, tuple[str, ...]] = {
    missing_data: (
        "dataset", "dataset.storage", "dataset.storage.path", "dataset.val_path",
        "dataset.test_path",
    ),
    paths_here: ("data_dir", "outputs", "trainer.resume", "trainer.init_from"),
    torch_dataset: ("dataset", "dataset.target", "sampler"),
    stream: ("dataset", "dataset.source", "dataset.source.path", "sampler", "trainer.max_epochs"),
    schedule: (
        "scheduler", "scheduler.mode", "trainer.scheduler_interval", "trainer.monitor",
        "trainer.monitor_mode",
    ),
    sequence: (
        "scheduler", "scheduler.schedules", "scheduler.lengths", "trainer.scheduler_interval",
    ),
    parameter_groups: ("optimizer", "optimizer.groups"),
    watched_validation: ("callback", "trainer.validate_every", "trainer.limit_val_batches"),
    colours_after_normalize: ("augment", "augment.device"),
    crops_above_images: ("augment", "augment.train", "augment.eval"),
    empty_run: ("dataset", "dataset.decode"),
    classes_in_batches: (
        "dataset", "dataset.storage", "sampler", "sampler.identities",
        "sampler.images_per_identity", "loader", "loader.batch_size",
    ),
    caches: ("dataset", "dataset.cache", "dataset.cache.max_bytes"),
    mixing: ("dataset", "dataset.sources", "sampler"),
}  # fmt: skip
"""The rules, and the keys that must be right for them to make sense."""


def model_capabilities(node: Mapping[str, Any]) -> ModelCapabilities:
    """Ask a model what its arguments say of it.

    Args:
        node: The model's part of a config.

    Raises:
        ValueError: They are wrong, or a library that it needs is missing.
    """
    component = registry.find(str(node.get("_target_")))
    if component is None or component.capabilities is None:
        return ModelCapabilities()
    asked = inspect.signature(component.capabilities).parameters
    told: ModelCapabilities = component.capabilities(**{k: node[k] for k in asked if k in node})
    return told


def suit_model(config: dict[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Normalise images as the model's weights want it, where the config leaves that open.

    Args:
        config: A config that was checked; ``mean`` and ``std`` of ``augment.device`` are changed.
        wrong: Keys that have been reported.

    Returns:
        What is wrong with the model's arguments.
    """
    node = config.get("model")
    if not isinstance(node, dict) or any(f"{key}.".startswith("model.") for key in wrong):
        return []
    try:
        told = model_capabilities(node)
    except ValueError as error:
        return [Problem("", " ".join(str(error).split()))]
    for step in ((config.get("augment") or {}).get("device") or {}).values():
        if step and step.get("_target_") == "batch_transform/normalize":
            for name, value in (("mean", told.mean), ("std", told.std)):
                if step.get(name) is None and value is not None:
                    step[name] = list(value)
    weights = node.get("weights") if "weights" in told.begins_with else None
    tries = any(command in config for command in ("predict", "evaluate", "export"))
    begun = tries or (config.get("trainer") or {}).get("resume")
    if isinstance(weights, str) and not begun and not Path(weights).expanduser().exists():
        text = f"{weights!r} does not exist; type model.weights=<file>, or null for none"
        return [Problem("model.weights", text)]
    return []
