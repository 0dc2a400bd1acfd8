"""The command that trains on what was packed, as packing prints it at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datasets.protocols import Storage
from datasets.sample import Record
from pipeline.config.compose import compose, composer_for

_KEPT = ("imports=", "task=", "task.")
_BYTES = (bytes, bytearray, memoryview)
_OF_IMAGES = ("image", "scaled")


def training_line(
    source: Mapping[str, Any],
    typed: Sequence[str],
    *,
    to: str,
    place: Sequence[str],
    packed: Storage,
    only_pixels: bool,
) -> str:
    """How to train on what was packed, with the task and the decoder of the source.

    Args:
        source: The node ``dataset`` of the config that was packed with.
        typed: What was typed for packing.
        to: The storage that reads the result.
        place: Overrides that say where the result lies.
        packed: A part of the result, opened.
        only_pixels: All images of it are decoded, in the source's mode.
    """
    place = [_dataset(to, typed), *place]
    if source.get("annotations"):  # tasks ask such files for names that records have not
        return f"read it with: {shlex.join(place)}"
    first = packed.read(np.zeros(1, np.int64))[0]
    fields = first.fields if isinstance(first, Record) else {}
    words = [text for text in typed if text.startswith(_KEPT)]
    if not any(text.startswith("task=") for text in words):
        words += _task(fields)
    given = compose([*place, *words])
    before, default = _name(source["decode"]), _name(given["dataset"]["decode"])
    words += _decoder(before, default, typed, fields, only_pixels=only_pixels)
    sampler = given["sampler"]
    if _name(sampler) == "length_bucket" and sampler["column"] not in packed.index.columns:
        words.append("sampler=random")
    return f"train on it: python train.py {shlex.join([place[0], *words, *place[1:]])}"


def _dataset(to: str, typed: Sequence[str]) -> str:
    """What chooses the storage: a user's own is none of the options of ``dataset``."""
    imports = [text for text in typed if text.startswith("imports=")]
    is_option = to in composer_for(imports).options("dataset")
    return f"dataset={to}" if is_option else f"dataset/storage={to}"


def _decoder(
    before: str, default: str, typed: Sequence[str], fields: Mapping[str, Any], *, only_pixels: bool
) -> list[str]:
    """What has to be said about the decoder, where `default` is that of the result's option."""
    encoded = any(isinstance(fields.get(name), _BYTES) for name in ("image", "mask"))
    wanted = before
    if encoded and before == "raw":
        wanted = "image"
    elif "image" not in fields and before in _OF_IMAGES:
        wanted = "raw" if default in _OF_IMAGES else default
    elif only_pixels and not encoded and default == "raw":
        wanted = default
    words = [] if wanted == default else [f"dataset/decode={wanted}"]
    if wanted == before:
        words += [text for text in typed if text.startswith("dataset.decode.")]
    return words


def _task(fields: Mapping[str, Any]) -> list[str]:
    """The task that records need which are no images, by the fields that tasks have by default."""
    if "image" in fields or "label" not in fields:
        return []
    if "tokens" in fields:
        return ["task=sequence"]
    return ["task=table"] if len(fields) > 1 and all(map(_is_single, fields.values())) else []


def _is_single(value: Any) -> bool:
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return is_plain or getattr(value, "shape", None) == ()


def _name(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).rpartition("/")[2]
