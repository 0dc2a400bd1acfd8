"""``penstock pack``: copy a data set into another form, or check such a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.datasets.files.access import is_url

if TYPE_CHECKING:
    from penstock.core.contracts import Storage
    from penstock.transforms.recode import Recode


# Settings that say how it is done, and not what comes of it.
_EXECUTION = frozenset("path to check num_workers launcher on_error overwrite verify".split())


@register("settings", "pack")
@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Where to pack to, and how images are prepared; by default files stay byte for byte.

    Images that are encoded anew are JPEG: 4:2:0, or grey; upright, without alpha or metadata.
    FFCV's usual preparation is ``max_side=500 quality=90 raw=0.5``.

    Records are written in parts by several processes. What was killed goes on, by the same
    command, at the next part; the folder appears under its name when it is whole.

    Args:
        path: The folder to make; it gets ``train`` and ``val``, and ``test`` where the data has
            that. It must not exist, or be empty. Or the URL of an object store, to which it is
            copied once it is whole here.
        to: The form to write: a storage's name. ``writer.<argument>`` are its own arguments.
        max_side: Shrink images whose longer side has more pixels to it (area interpolation).
        short_side: The same for the shorter side.
        quality: Encode all images anew at this JPEG quality, 1 .. 100. Null: only those that
            another option changes, at 95.
        tiled: Encode anew as tiled JPEG, of which a crop is decoded alone.
        raw: Share of the images, 0 .. 1, spread evenly, that are stored as decoded pixels, in
            the mode of ``dataset.decode``: quickest to read, several times the bytes.
        num_workers: Processes that read, change and write; auto: one for each core, once
            there is enough to do for them. 0: this one alone. The result is the same.
        launcher: Where these processes run: ``local``, on this machine, or ``ray``, on a cluster
            whose machines see the data (and `path`, for ``to=memmap``); auto is then a process
            for each of its cores. The result is the same.
        on_error: What becomes of records that cannot be read: ``raise``, or ``skip``, which
            leaves them out and lists them in ``bad_records.csv``.
        verify: Read all of the result again and compare it with its checksums.
        overwrite: Replace what is at `path`, if pack made it and nobody has changed it.
        check: Make nothing, and check what was packed at this path: damaged records are named.
    """

    path: str | None = None
    to: str = "lmdb"
    max_side: Annotated[int, Ge(1)] | None = None
    short_side: Annotated[int, Ge(1)] | None = None
    quality: Annotated[int, Ge(1), Le(100)] | None = None
    tiled: bool = False
    raw: Annotated[float, Ge(0), Le(1)] = 0.0
    num_workers: Annotated[int, Ge(0)] | Literal["auto"] = "auto"
    launcher: Literal["local", "ray"] = "local"
    on_error: Literal["raise", "skip"] = "raise"
    verify: bool = False
    overwrite: bool = False
    check: str | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.path is None and self.check is None:
            raise ValueError("pack.path: missing, accepts a string; type pack.path=<new folder>")
        shrinking = [name for name in ("max_side", "short_side") if getattr(self, name)]
        if len(shrinking) > 1:
            raise ValueError("pack: max_side and short_side both say the size; give one of them")
        if self.raw == 1:
            for name in ("quality", "tiled"):
                if getattr(self, name):
                    raise ValueError(
                        f"pack.raw=1 writes no JPEG, so pack.{name} has no use; leave it out"
                    )

    @property
    def changes_images(self) -> bool:
        """Whether anything is asked for but a copy."""
        return bool(self.max_side or self.short_side or self.quality or self.tiled or self.raw)


def run(config: dict[str, Any], typed: Sequence[str] = ()) -> int:
    """Write all splits of ``dataset.storage`` as ``pack.to`` under ``pack.path``.

    Args:
        config: The plain config.
        typed: The overrides that it came from, of which those of the task stay true of the result.
    """
    from penstock.core.processes import default_workers
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.config.components import register_components
    from penstock.pipeline.instantiate import build
    from penstock.pipeline.packing.report import training_line
    from penstock.pipeline.packing.run import Packing, pack
    from penstock.pipeline.packing.verify import check, open_packed

    settings: PackSettings = build_settings(config["pack"])
    workers = settings.num_workers
    num_workers = workers if isinstance(workers, int) else default_workers()
    if settings.launcher == "ray" and workers == "auto":
        from penstock.core.ray_cluster import connected

        num_workers = int(connected().cluster_resources().get("CPU", 1))
    imports = config["imports"]
    if settings.check is not None:
        register_components(imports)
        return check(Path(settings.check), num_workers=num_workers, imports=imports)
    assert settings.path is not None
    if is_url(settings.path):
        raise ValueError(
            f"pack.path: {settings.path} given, expected a folder; pack into one, and copy it to "
            f"the store, such as: aws s3 sync FOLDER {settings.path}"
        )
    refuse_nesting(config, settings.path)
    folder = Path(settings.path).expanduser()
    folder = folder.resolve() if folder.name in ("", "..") else folder
    sources = open_sources(config)
    if not sources:
        raise ValueError("pack: the data set has no records; check dataset.storage.path")
    node = config["writer"]
    name = node["_target_"].partition("/")[2]
    writer = build(node)
    recipe = {
        "pack.to": name,
        "the version of its writer": writer.version,
        **{f"writer.{key}": value for key, value in node.items() if key != "_target_"},
        **{f"pack.{k}": v for k, v in asdict(settings).items() if k not in _EXECUTION},
        "dataset.decode": config["dataset"]["decode"] if settings.changes_images else None,
        **{f"the data of {s}": source.fingerprint() for s, source in sources.items()},
    }
    packing = Packing(
        sources=sources,
        target=folder,
        writer=writer,
        name=name,
        recipe=recipe,
        recode=make_recode(config, settings) if settings.changes_images else None,
        skip_bad=settings.on_error == "skip",
        overwrite=settings.overwrite,
        verify_all=settings.verify,
        num_workers=num_workers,
        launcher=settings.launcher,
        for_few_parts=settings.changes_images or workers != "auto",
        imports=imports,
    )
    status = pack(packing)
    if status == 0:
        split = next(iter(sources))
        line = training_line(
            config,
            typed,
            to=name,
            place=_place(str(folder), list(sources)),
            packed=open_packed(folder / split, {"storage": name}),
            has_names=any(source.index.field_classes for source in sources.values()),
            only_pixels=settings.raw == 1,
        )
        print(line)
    return status


def open_sources(config: dict[str, Any]) -> dict[str, Storage]:
    """Open the splits that there are, and say which is left out.

    A test split may be one that training could not use, without labels or annotations: that it
    cannot be opened is said, and is no reason to pack nothing.

    Raises:
        ValueError: One to train or to validate on cannot be opened.
    """
    from penstock.datasets.records.label_files import find_mark
    from penstock.pipeline.build import open_storage, splits_of

    sources = {split: open_storage(config, split) for split in ("train", "val")}
    if "test" in splits_of(config):
        try:
            sources["test"] = open_storage(config, "test")
        except ValueError as error:
            print(f"test: nothing written: {error}")
    path = str(config["dataset"]["storage"].get("path"))
    if not config["dataset"].get("annotations") and not is_url(path):
        for mark in filter(None, (find_mark(f"{path}/{split}") for split in sources)):
            if names := mark.field_classes:
                print(f"the names of {', '.join(names)} that pack kept at {path} stay behind; to "
                      f"keep them, add dataset/annotations=in_records")  # fmt: skip
                break
    for split in [split for split, source in sources.items() if not len(source)]:
        print(f"{split}: no records, nothing written")
        del sources[split]
    return sources


def _place(target: str, splits: list[str]) -> list[str]:
    """Overrides that say where the result lies."""
    # A folder to train and validate is opened as one; without either, a split by its own name.
    whole = {"train", "val"} <= set(splits)
    apart = splits[1:] == ["test"]
    return [
        f"dataset.storage.path={target if whole else f'{target}/{splits[0]}'}",
        *([] if whole else ["dataset.val_fraction=0"]),
        *([f"dataset.test_path={target}/test"] if apart else []),
    ]


def refuse_nesting(config: dict[str, Any], target: str, key: str = "pack.path") -> None:
    """Refuse to write into the source, or where the source lies in what is written.

    Args:
        config: The plain config.
        target: The folder to make, or its URL.
        key: Where it was given.

    Raises:
        ValueError: They lie in each other.
    """
    node, place = config["dataset"].get("storage") or {}, _real(target)
    for source in _paths(node.get("path")):
        if f"{place}/".startswith(f"{source}/") or f"{source}/".startswith(f"{place}/"):
            raise ValueError(
                f"{key}: {place} and the source, {source}, lie in each other; name a folder "
                f"beside it"
            )


def _paths(value: Any) -> Iterator[str]:
    """Folders, files and URLs that a storage's path names."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, str) and (is_url(value) or os.path.exists(os.path.expanduser(value))):
        yield _real(value)


def _real(path: str) -> str:
    return path.rstrip("/") if is_url(path) else os.path.realpath(os.path.expanduser(path))


def make_recode(config: dict[str, Any], settings: PackSettings) -> Recode:
    """Make what prepares records; images are decoded as the config says, but whole.

    Raises:
        ValueError: The decoder does not go with the settings.
    """
    from penstock.pipeline.instantiate import build
    from penstock.transforms.recode import Recode

    node = config["dataset"]["decode"]
    if node["_target_"] != "decode/image":
        raise ValueError(
            f"pack: images are to be changed, but dataset/decode is {node['_target_']}, which "
            f"decodes none; give dataset/decode=image, or leave the options out"
        )
    encodes = settings.raw < 1 and (
        settings.max_side or settings.short_side or settings.quality or settings.tiled
    )
    if encodes and node["mode"] == "RGBA":
        raise ValueError(
            "pack: dataset.decode.mode=RGBA, but a JPEG holds no alpha; give mode RGB or L, or "
            "pack.raw=1"
        )
    return Recode(
        decode=build(node),
        max_side=settings.max_side,
        short_side=settings.short_side,
        quality=settings.quality,
        tiled=settings.tiled,
        raw=settings.raw,
    )
