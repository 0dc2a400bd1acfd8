"""Shards of arrays: `.npy` files, a field each, and `.npz` archives with a member per field."""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.data_files import DataFiles
from datasets.file_reader import retried
from datasets.formats.array_files import check_field, field_name, field_place, look_at_header
from datasets.formats.npy_bytes import view_npy
from datasets.formats.ragged import OFFSETS, check_part, join_parts
from datasets.formats.zip_members import (
    DEFLATED,
    DamagedMember,
    Member,
    list_members,
    read_member,
)
from datasets.shard_rows import DamagedShard, OpenShard
from datasets.shards import Form, Shard, group_by_shard
from datasets.shared_file import EndOfFile, FileView, OpenFiles, SharedFile

_LOCAL_HEADER = struct.Struct("<26x2H")
# The header of a .npy file has at most 10,000 bytes for NumPy.
_HEAD_BYTES = 1 << 14
# Numbers, and text of a fixed width.
_KINDS = "biufcSU"


def look_at_npy_shards(files: DataFiles, kinds: dict[str, str], *, where: str) -> list[Shard]:
    """The shards that `.npy` and `.npz` files make up; only their headers are read.

    Args:
        files: The files.
        kinds: What ragged fields hold: ``bytes``, ``text``, ``json``; arrays where not named.
        where: The storage, for messages.

    Raises:
        ValueError: A file is damaged or holds what is not taken, or arrays of a shard differ in
            length.
    """
    opened = OpenFiles(files.root)
    archives = [at for at, name in enumerate(files.names) if name.lower().endswith(".npz")]
    single = [at for at in range(len(files.names)) if at not in set(archives)]
    shards = []
    groups = group_by_shard([files.names[at] for at in single], where=where)
    for name, fields in groups.items():
        places = {}
        for field, n in fields.items():
            at = single[n]
            size = files.marks[at][0]
            view = FileView(opened[files.names[at]], size)
            said = f"{where}: {files.names[at]}"
            places[field] = {"file": at, **_look(view, size, said)}
        first = files.names[single[next(iter(fields.values()))]]
        shards.append(_shard(name or first, places, kinds, where=where))
    for at in archives:
        name = files.names[at]
        said = f"{where}: {name}"
        file, size = opened[name], files.marks[at][0]
        places = {}
        for member in list_members(FileView(file, size), where=said):
            field = member.name.removesuffix(".npy")
            field = field_name(field.partition(".")[0]) + "".join(field.partition(".")[1:])
            check_field(field.partition(".")[0], f"{name}: {member.name}", where=where,
                        taken=("key",))  # fmt: skip
            places[field] = {"file": at, **_look_at_member(file, member, said)}
        shards.append(_shard(name, places, kinds, where=where))
    return shards


def open_npy_shard(shard: Shard, files: DataFiles, *, checksums: bool) -> OpenShard:
    """Map the arrays of a shard; compressed ones are read.

    Args:
        shard: What `look_at_npy_shards` found.
        files: The same files.
        checksums: Compare members of archives with their checksums; then all of them is read.

    Raises:
        DamagedShard: It is not what it was, or a checksum differs.
        datasets.file_reader.MissingFile: A file is gone.
        OSError: Trouble that did not pass.
    """
    arrays: dict[str, NDArray[Any]] = {}
    mapped: dict[str, int] = {}
    size_bytes = 0
    opened = OpenFiles(files.root)
    for field, place in shard.places.items():
        name, (size, _) = files.names[place["file"]], files.marks[place["file"]]
        dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
        try:
            if place["member"] is not None and (checksums or place["deflated"]):
                content = read_member(opened[name], **place["member"])
                if place["deflated"]:
                    size_bytes += len(content)
                    count = math.prod(shape)
                    array = np.frombuffer(content, dtype, count, place["offset"])
                    arrays[field] = array.reshape(shape)
                    continue
            arrays[field] = _mapped(os.path.join(files.root, name), place, files.root)
            mapped[os.path.join(files.root, name)] = size
        except (DamagedMember, EndOfFile, ValueError) as error:
            raise DamagedShard(f"{name}: {error}") from error
    kinds = {field: place.get("kind", "array") for field, place in shard.places.items()}
    fields = join_parts({name: arrays[name] for name in shard.places}, kinds)
    return OpenShard(
        {name: fields[name] for name in shard.forms}, tuple(mapped.items()), size_bytes
    )


def load_npz(path: str, *, root: str, where: str) -> dict[str, NDArray[Any]]:
    """The arrays in an `.npz` file by name, compared with their checksums.

    Raises:
        ValueError: It is damaged, or holds Python objects.
        datasets.file_reader.MissingFile: It is gone.
    """
    file = SharedFile(path, root=root)
    size = retried(lambda: os.stat(path).st_size, path=path, root=root)
    arrays = {}
    for member in list_members(FileView(file, size), where=where):
        said = f"{where}: {member.name}"
        try:
            content = read_member(file, **_found(member))
            arrays[member.name.removesuffix(".npy")] = view_npy(content)
        except (DamagedMember, EndOfFile, ValueError) as error:
            raise ValueError(f"{said}: {error}") from error
    return arrays


def _look(file: Any, size: int, said: str) -> dict[str, Any]:
    shape, dtype, offset = look_at_header(file, size, said, kinds=_KINDS)
    return {"dtype": dtype, "shape": shape, "offset": offset, "member": None, "deflated": False}


def _look_at_member(file: Any, member: Member, said: str) -> dict[str, Any]:
    deflated = member.method == DEFLATED
    try:
        header = file.read(member.offset, member.header_bytes)
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(header)
        start = member.offset + 30 + name_bytes + extra_bytes
        head = file.read_upto(start, min(member.stored_bytes, _HEAD_BYTES))
        if deflated:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, _HEAD_BYTES)
        elif member.stored_bytes != member.size_bytes:
            raise EndOfFile(f"{member.stored_bytes:,} bytes cannot be {member.size_bytes:,}")
    except (EndOfFile, zlib.error, struct.error) as error:
        raise ValueError(
            f"{said}: {member.name} is damaged ({error}); copy the archive again"
        ) from error
    found = _look(io.BytesIO(head), member.size_bytes, f"{said}: {member.name}")
    offset = found["offset"] if deflated else found["offset"] + start
    return {**found, "offset": offset, "member": _found(member), "deflated": deflated}


def _found(member: Member) -> dict[str, int]:
    names = ("offset", "header_bytes", "stored_bytes", "size_bytes", "crc32", "method")
    return {name: getattr(member, name) for name in names}


def _mapped(path: str, place: dict[str, Any], root: str) -> NDArray[Any]:
    """An array in a file, read-only; `np.memmap` takes three times as long to make one."""
    dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
    if not math.prod(shape):
        return np.empty(shape, dtype)

    def read() -> mmap.mmap:
        with open(path, "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    memory = retried(read, path=path, root=root)
    missing = place["offset"] + math.prod(shape) * dtype.itemsize - len(memory)
    if missing > 0:
        raise EndOfFile(f"the file ends {missing:,} bytes too early")
    return np.frombuffer(memory, dtype, math.prod(shape), place["offset"]).reshape(shape)


def _shard(
    name: str, places: dict[str, dict[str, Any]], kinds: dict[str, str], *, where: str
) -> Shard:
    """A shard of the arrays that were found, compared with each other."""
    forms: dict[str, Form | None] = {}
    counts: dict[str, int] = {}
    for field in sorted(places, key=field_place):
        place = places[field]
        if check_part(field, places, f"{where}: {name}"):
            continue
        if f"{field}.{OFFSETS}" in places:
            counts[field] = places[f"{field}.{OFFSETS}"]["shape"][0] - 1
            forms[field] = None
            place["kind"] = kinds.get(field, "array")
        else:
            counts[field] = place["shape"][0]
            forms[field] = Form(place["dtype"], tuple(place["shape"][1:]))
    if not counts:
        raise ValueError(f"{where}: {name} holds no array; write it with np.savez(images=...)")
    first = next(iter(counts))
    for field, count in counts.items():
        if count != counts[first]:
            raise ValueError(
                f"{where}: {name}: {first} has {counts[first]:,} rows and {field} has {count:,}, "
                f"expected the same number"
            )
    size = sum(math.prod(p["shape"]) * np.dtype(p["dtype"]).itemsize for p in places.values())
    return Shard(name, counts[first], places, forms, size)
