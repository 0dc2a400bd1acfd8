"""``penstock doctor``: what this machine and this configuration can promise."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.registry import find, register
from penstock.pipeline.commands.table import table_lines

if TYPE_CHECKING:
    from penstock.pipeline.loader.settings import LoaderSettings

_PACKAGES = (
    "torch", "numpy", "hydra-core", "albumentations", "opencv-python-headless", "simplejpeg",
    "pillow", "lmdb", "pyarrow",
)  # fmt: skip
_READ_BATCHES, _READ_BYTES = 4, 64_000_000
"""What is read at most, but for a batch, to tell what an epoch asks for."""
_OURS = (None, "inline", "processes", "threads", "torch")
_INLINE: dict[str, Any] = {"engine": "inline", "num_workers": 0}


@register("settings", "doctor")
@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """What doctor looks at.

    Args:
        equal: Hash batches over engines, worker counts, ranks and a resume, and compare.
        batches: Number of batches to compare.
    """

    equal: bool = False
    batches: int = 4


class Given(NamedTuple):
    """Hashes of a batch: of all of it, empty where ranks share it, and of each valid row."""

    whole: str
    rows: list[str]


def run(config: dict[str, Any]) -> int:
    """Print the machine, and with ``equal=true`` the proof; 1 where something differs."""
    from penstock.pipeline.build import build_settings

    settings: DoctorSettings = build_settings(config["doctor"])
    _print_machine(config)
    if not settings.equal:
        how = "penstock doctor equal=true"
        print(f"\n`{how}` compares batches over engines, workers, ranks and a resume.")
        return 0
    return _print_equality(config, settings.batches)


def _print_machine(config: Mapping[str, Any]) -> None:
    from penstock.core.processes import usable_cores
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.mixes import sources_of

    cores = usable_cores()
    settings: LoaderSettings = build_settings(config["loader"])
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
    print(f"parts of JPEGs: {_region_decoder()}")
    print(f"cores this process may use, by affinity and quota: {cores} of {os.cpu_count()}")
    if os.path.isdir("/dev/shm"):
        usage = shutil.disk_usage("/dev/shm")
        print(f"/dev/shm: {usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f}")
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"accelerators: {', '.join(gpus) or 'none, training runs on the CPU'}")
    if settings.workers > cores:
        print(f"note: loader.num_workers={settings.workers} on {cores} cores; {cores} would do")
    print(f"note: {_promise(settings)}")
    parts = sources_of(config) or {"": dict(config)}
    for name, part in parts.items():
        if cost := _cost_of_epoch(part):
            print(f"{f'{name}: ' if name else ''}{cost}")


def _cost_of_epoch(config: Mapping[str, Any]) -> str | None:
    """Tell the requests of an epoch by reading some of its batches; None: of a disk, a stream."""
    from penstock.core.contracts import FittedDecoder
    from penstock.core.stage_times import counted
    from penstock.datasets.caches.cached_storage import CachedStorage
    from penstock.datasets.files.access import is_url
    from penstock.datasets.map_dataset import MapDataset
    from penstock.pipeline.build import build_dataset, build_loader, build_sampler
    from penstock.pipeline.instantiate import build
    from penstock.pipeline.loader.plan import indexed_tasks

    node = config["dataset"]
    path: Any = (node.get("storage") or {}).get("path")
    paths = path if isinstance(path, list | tuple) else [path]
    if node["_target_"] != "dataset/map" or not any(map(is_url, paths)):
        return None
    if isinstance(build(node["decode"]), FittedDecoder):
        return None  # a table, whose columns are read by another way
    plain = {**config, "dataset": {**node, "cache": {"_target_": "cache/none"}}}
    dataset: Any = build_dataset(config, "train")
    loader = build_loader(plain, "train")
    assert isinstance(loader.dataset, MapDataset) and loader.plan is not None
    sampler = build_sampler(plain, loader.dataset)
    requests = size_bytes = batches = 0
    for number in range(0, len(loader), max(1, len(loader) // _READ_BATCHES)):
        task = next(indexed_tasks(loader.plan, sampler, len(loader.dataset), epoch=0,
                                  start=number, quarantine=frozenset()))  # fmt: skip
        with counted() as asked:
            loader.dataset.read(task.indices, task.positions, 0)
        batches += 1
        requests, size_bytes = requests + asked.requests, size_bytes + asked.fetched_bytes
        if batches == _READ_BATCHES or size_bytes > _READ_BYTES:
            break
    loader.close()
    if not requests:
        return None
    share = len(loader) / batches
    all_bytes = share * size_bytes
    said = f"an epoch of {loader.dataset.storage} takes about {_asked(share * requests, all_bytes)}"
    if not isinstance(dataset.storage, CachedStorage):
        return f"{said}, and each later one too: nothing is kept"
    kept = min(dataset.storage.store.room_bytes / all_bytes, 1.0)
    if kept == 1.0:
        return f"{said}; later ones none: the cache has room for all of it"
    later = _asked((1 - kept) * share * requests, (1 - kept) * all_bytes)
    return f"{said}; later ones about {later}: the cache has room for {kept:.0%} of it"


def _asked(requests: float, size_bytes: float) -> str:
    return f"{round(requests):,} requests for {size_bytes / 1e6:,.1f} MB"


def _promise(loader: LoaderSettings) -> str:
    """Tell what becomes of a run when a worker dies or hangs."""
    engine = loader.engine
    if engine == "inline" or not loader.workers:
        return "batches are computed in this process: a crash or a hang of it is fatal"
    if engine in ("processes", "ray") or engine is None:
        only = " (threads for columns)" if engine is None else ""
        return (
            f"loader={engine or 'default'}{only}: a worker process that dies or hangs is replaced, "
            f"and a sample that kills its worker again is quarantined"
        )
    if engine not in _OURS:
        return f"loader.engine={engine} is your own: `doctor equal=true` compares its batches"
    if engine == "torch":
        return "loader=torch: a worker that dies ends the run with a clear line; resume goes on"
    return (
        f"loader={engine or 'default'} with threads of this process, {loader.workers} here: a "
        f"crash is fatal, and a hang ends the run at loader.timeout_s with all stacks; set "
        f"loader.engine=processes to have both recovered from"
    )


def _region_decoder() -> str:
    from penstock.transforms.decode.image.turbojpeg import region_decoder

    decoder = region_decoder()
    if decoder is None:
        return "no TurboJPEG 3, so more is decoded than a crop needs: pip install '.[regions]'"
    return f"by TurboJPEG 3, {decoder.path}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "MISSING"


def _print_equality(config: dict[str, Any], batches: int) -> int:
    """Compare batches computed in several ways with those of the inline engine."""
    from penstock.pipeline.build import settle

    begin = time.perf_counter()
    rows: list[list[str]] = []
    reference: list[Given] = []
    different = refused = 0
    for name, compute in _ways(dict(settle(config)), batches).items():
        start = time.perf_counter()
        try:
            given = compute()
        except (ValueError, RuntimeError) as error:
            if not reference:
                raise
            refused += 1
            result, counts = f"cannot be run: {error}", ["", ""]
        else:
            result = _compare(reference, given) if reference else "reference"
            different += result not in ("equal", "reference")
            reference = reference or given
            counts = [str(len(given)), str(sum(len(batch.rows) for batch in given))]
        if not reference:
            raise ValueError(
                "doctor: the configuration gives no batch to compare; look at the data"
            )
        rows.append([name, *counts, result, f"{time.perf_counter() - start:.1f}"])
    print("\nthe same batches:\n")
    heads = ("how", "batches", "rows", "result", "seconds")
    print(*table_lines(heads, rows, numbers=("batches", "rows", "seconds")), sep="\n")
    if different:
        names = " or ".join(_of_user(config)) or "None of the components is yours, and one"
        print(
            f"The same position gave other data. {names} draws from a global random state or "
            f"keeps state between samples: take randomness from `rng`, or register it with "
            f"global_random=True."
        )
    if not different and not refused:
        print(f"all are equal; compared in {time.perf_counter() - begin:.0f} s")
    return 1 if different else 0


def _of_user(node: Any, key: str = "") -> Iterator[str]:
    """Name the user's own components in a config, with where they stand and are defined."""
    if not isinstance(node, Mapping):
        return
    target = str(node.get("_target_"))
    component = find(target)
    if component is not None and not component.target.__module__.startswith("penstock."):
        yield f"{key} ({target}, {component.origin})"
    if target in ("dataset/torch", "sampler/torch"):
        yield f"{key}.target ({node['target']})"
    for name, value in node.items():
        yield from _of_user(value, f"{key}.{name}" if key else str(name))


def _compare(reference: list[Given], given: list[Given]) -> str:
    """``equal``, or what is not; batches that ranks share are equal row by row."""
    wrong = abs(len(reference) - len(given)) + sum(
        a.rows != b.rows or bool(b.whole and a.whole != b.whole)
        for a, b in zip(reference, given, strict=False)
    )
    return f"{wrong} of {len(reference)} batches differ" if wrong else "equal"


def _ways(config: dict[str, Any], batches: int) -> dict[str, Callable[[], list[Given]]]:
    """Ways to run the same configuration, the first of which the others are compared with."""

    def way(engine: str, num_workers: int, **changes: Any) -> Callable[[], list[Given]]:
        changes |= {"engine": engine, "num_workers": num_workers}
        return partial(_given, config, changes, batches)

    ways = {"inline": way(**_INLINE), "inline, again": way(**_INLINE)}
    if (own := config["loader"]["engine"]) not in _OURS:
        ways[f"{own}, as configured"] = partial(_given, config, {}, batches)
    ways |= {f"torch, {n} worker{'s' * (n > 1)}": way("torch", n) for n in (1, 2, 3)}
    return ways | {
        "default": partial(_given, config, {"engine": None}, batches),
        "2 threads": way("threads", 2),
        "2 processes": way("processes", 2),
        "torch, 2 spawned workers": way("torch", 2, multiprocessing_context="spawn"),
        f"resumed after batch {batches // 2}": partial(_resumed, config, batches),
        "2 ranks, joined": partial(_joined, config, batches, world_size=2),
        "3 ranks, joined": partial(_joined, config, batches, world_size=3),
    }


def _loader(
    config: dict[str, Any], changes: dict[str, Any], *, rank: int = 0, world_size: int = 1
) -> Any:
    from penstock.pipeline.build import build_loader

    changed = deepcopy(config)
    changed["loader"] |= changes
    for name, engine in (("resources", "ray"), ("multiprocessing_context", "torch")):
        if changed["loader"]["engine"] != engine:
            changed["loader"][name] = None
    return build_loader(changed, "train", rank=rank, world_size=world_size)


def _digested(batch: Any) -> Given:
    from penstock.pipeline.commands.digest import batch_digest, row_digests

    return Given(batch_digest(batch), row_digests(batch))


def _given(config: dict[str, Any], changes: dict[str, Any], batches: int) -> list[Given]:
    with _loader(config, changes) as loader:
        return [_digested(batch) for batch in islice(loader, batches)]


def _resumed(config: dict[str, Any], batches: int) -> list[Given]:
    """Stop in the middle, and go on in a new loader from the state alone."""
    with _loader(config, _INLINE) as loader:
        given = [_digested(batch) for batch in islice(loader, batches // 2)]
        state = loader.state_dict()
    with _loader(config, {"engine": "torch", "num_workers": 2}) as loader:
        loader.load_state_dict(state)
        return given + [_digested(batch) for batch in islice(loader, batches - len(given))]


def _joined(config: dict[str, Any], batches: int, *, world_size: int) -> list[Given]:
    """Every rank's part of each batch, put together in the order of the ranks."""
    joined: list[Given] = []
    for rank in range(world_size):
        with _loader(config, _INLINE, rank=rank, world_size=world_size) as loader:
            for number, batch in enumerate(islice(loader, batches)):
                if number == len(joined):
                    joined.append(Given("", []))
                joined[number].rows.extend(_digested(batch).rows)
    return joined
