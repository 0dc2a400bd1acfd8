"""What lies in `.pt` files: tensors, mapped, and nothing that needs code to be run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets.data_files import DataFiles
from datasets.file_reader import retried
from datasets.formats.array_files import check_field, field_name, field_place
from datasets.formats.ragged import check_part, join_parts
from datasets.formats.zip_members import DamagedMember, list_members, read_member
from datasets.shard_rows import DamagedShard, OpenShard
from datasets.shards import Form, Shard, group_by_shard
from datasets.shared_file import EndOfFile, FileView, SharedFile

if TYPE_CHECKING:
    import torch

_REMEDY = "save tensors, or lists and dicts of them, with torch.save"
_PLACE = ("offset", "header_bytes", "stored_bytes", "size_bytes", "crc32", "method")


def load_pt(path: str, *, root: str, where: str, checksums: bool) -> Any:
    """What was saved in a file: its tensors are mapped, on the CPU; no code of it is run.

    Args:
        path: A file of `torch.save`, not of its old format.
        root: The folder of the data set.
        where: What messages call the file.
        checksums: Compare all of it with its checksums, for which it is read.

    Raises:
        ValueError: It is damaged, or holds what would take running code to load; one line.
        datasets.file_reader.MissingFile: It is gone.
        OSError: Trouble that did not pass.
    """
    import torch

    file = SharedFile(path, root=root)
    size = retried(lambda: os.stat(path).st_size, path=path, root=root)
    if file.read_upto(0, 2) != b"PK":
        raise ValueError(
            f"{where} is damaged, no file of torch.save, or one of its old format, which cannot "
            f"be mapped; {_REMEDY} of torch 1.6 or later"
        )
    for member in list_members(FileView(file, size), where=where):
        if member.name.endswith("/constants.pkl"):
            raise ValueError(f"{where} is a program (TorchScript), which is never run; {_REMEDY}")
        # What the library maps it does not compare; nothing else in the file is large.
        if checksums or "/data/" not in member.name:
            try:
                read_member(file, **{name: getattr(member, name) for name in _PLACE})
            except (DamagedMember, EndOfFile) as error:
                raise ValueError(f"{where}: {member.name}: {error}; copy it again") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # of many kinds, for damage and for what it may not load
        said = " ".join(str(error).split()).partition(" This file can still be loaded")[0]
        raise ValueError(
            f"{where} holds other things than tensors, or is damaged ({said[:200]}); {_REMEDY}"
        ) from None


def to_array(tensor: torch.Tensor, where: str) -> NDArray[Any]:
    """A tensor's memory as an array, read-only.

    Raises:
        ValueError: There is no such array: it is sparse, quantized, or of a type of torch alone.
    """
    try:
        array = tensor.detach().numpy()
    except (TypeError, RuntimeError):
        kind = "strided" if str(tensor.layout) == "torch.strided" else str(tensor.layout)[6:]
        raise ValueError(
            f"{where} is a {kind} tensor of {str(tensor.dtype)[6:]}, of which there is no array; "
            f"save a dense one of a plain type, such as float32 or float16"
        ) from None
    array.flags.writeable = False
    return array


def sample_fields(saved: Any, where: str) -> dict[str, Any]:
    """The fields of one sample that was saved: a tensor, or a dict of tensors and plain values.

    Raises:
        ValueError: It is something else; one line.
    """
    import torch

    if isinstance(saved, torch.Tensor):
        return {"array": to_array(saved, where)}
    if not isinstance(saved, Mapping):
        raise ValueError(f"{where} holds a {type(saved).__name__}, expected a tensor or a dict")
    return {str(name): _plain(value, f"{where}: {name!r}") for name, value in saved.items()}


def look_at_pt_shards(files: DataFiles, *, where: str) -> list[Shard]:
    """The shards that `.pt` files make up; no tensor of theirs is read.

    Raises:
        ValueError: A file is damaged or holds what is not taken, or fields of a shard differ in
            length.
    """
    found: dict[int, dict[str | None, Form | None]] = {}
    counts: dict[int, dict[str | None, int]] = {}
    for at, (name, path) in enumerate(zip(files.names, files.paths, strict=True)):
        said = f"{where}: {name}"
        columns = _columns(load_pt(path, root=files.root, where=said, checksums=False), said)
        counts[at] = {field: len(column) for field, column in columns.items()}
        found[at] = {field: _form(column) for field, column in columns.items()}
    single = [at for at in found if None in found[at]]
    groups = group_by_shard([files.names[at] for at in single], where=where)
    shards: list[tuple[str, dict[str, Any]]] = [
        (name or files.names[single[0]], {field: (single[n], None) for field, n in group.items()})
        for name, group in groups.items()
    ]
    for at in found:
        if None not in found[at]:
            fields = {field_name(str(field)): (at, str(field)) for field in found[at]}
            for field in fields:
                named = f"{files.names[at]}: {field!r}"
                check_field(field, named, where=where, taken=("key",))
            shards.append((files.names[at], fields))
    return [_shard(name, places, found, counts, files, where) for name, places in shards]


def open_pt_shard(shard: Shard, files: DataFiles, *, checksums: bool) -> OpenShard:
    """Map the tensors of a shard.

    Args:
        shard: What `look_at_pt_shards` found.
        files: The same files.
        checksums: Compare the files with their checksums, for which they are read.

    Raises:
        DamagedShard: It is not what it was, or a checksum differs.
        datasets.file_reader.MissingFile: A file is gone.
        OSError: Trouble that did not pass.
    """
    loaded: dict[int, dict[str | None, Any]] = {}
    for at in {file for file, _ in shard.places.values()}:
        path, name = files.paths[at], files.names[at]
        try:
            saved = load_pt(path, root=files.root, where=name, checksums=checksums)
            loaded[at] = _columns(saved, name)
        except ValueError as error:
            raise DamagedShard(str(error)) from error
    fields: dict[str, Any] = {}
    for field, (at, key) in shard.places.items():
        column = loaded[at].get(key)
        if column is None or len(column) != shard.count or _form(column) != shard.forms[field]:
            raise DamagedShard(f"{files.names[at]} was written anew while it was in use")
        fields[field] = column
    return OpenShard(fields, tuple((files.paths[at], files.marks[at][0]) for at in loaded))


class Items:
    """Values of a list, by row: tensors as arrays."""

    def __init__(self, values: Sequence[Any], where: str) -> None:
        self._values = values
        self._where = where

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: int) -> Any:
        """One value.

        Raises:
            DamagedShard: It is none.
        """
        try:
            return _plain(self._values[row], f"{self._where}: row {row}")
        except ValueError as error:
            raise DamagedShard(str(error)) from error


def _columns(saved: Any, where: str) -> dict[str | None, Any]:
    """What gives the value of a row, by field; under None if the file's name is its field's."""
    import torch

    if isinstance(saved, Mapping):
        columns = {name: _column(value, f"{where}: {name!r}") for name, value in saved.items()}
        if any(check_part(str(name), saved, where) for name in saved):
            try:
                return {name: column for name, column in join_parts(columns, {}).items()}
            except (DamagedShard, AttributeError) as error:
                raise ValueError(f"{where}: {error}; write it again") from error
        return columns
    if isinstance(saved, torch.Tensor):
        return {None: _column(saved, where)}
    if isinstance(saved, list) and saved:
        if all(isinstance(value, torch.Tensor) for value in saved):
            return {None: Items(saved, where)}
        if all(isinstance(value, Mapping) and value.keys() == saved[0].keys() for value in saved):
            return {
                name: _column([value[name] for value in saved], f"{where}: {name!r}")
                for name in saved[0]
            }
    raise ValueError(
        f"{where} holds a {type(saved).__name__}, expected a tensor [N, ...], a dict of these or "
        f"a list of tensors or of dicts with the same fields; save one of them"
    )


def _column(value: Any, where: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        array = to_array(value, where)
        if not array.ndim:
            raise ValueError(f"{where} holds one number, expected an axis of samples first")
        return array
    if not isinstance(value, list):
        raise ValueError(f"{where} is a {type(value).__name__}, expected a tensor or a list")
    for kind in (bool, int, float):
        if value and all(type(item) is kind for item in value):
            numbers = np.array(value)
            if numbers.dtype.kind in "bif":
                return numbers
    return Items(value, where)


def _form(column: Any) -> Form | None:
    if not isinstance(column, np.ndarray):
        return None
    return Form(column.dtype.str, column.shape[1:])


def _plain(value: Any, where: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return to_array(value, where) if value.ndim else value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item, where) for name, item in value.items()}
    raise ValueError(f"{where} is a {type(value).__name__}, expected tensors and plain values")


def _shard(
    name: str,
    places: dict[str, Any],
    forms: dict[int, dict[str | None, Form | None]],
    counts: dict[int, dict[str | None, int]],
    files: DataFiles,
    where: str,
) -> Shard:
    if not places:
        raise ValueError(f"{where}: {name} holds no tensor; {_REMEDY}")
    order = sorted(places, key=field_place)
    first, (at, key) = order[0], places[order[0]]
    count = counts[at][key]
    for field in order:
        file, key = places[field]
        if counts[file][key] != count:
            raise ValueError(
                f"{where}: {name}: {first} has {count:,} rows and {field} has "
                f"{counts[file][key]:,}, expected the same number"
            )
    size = sum(files.marks[file][0] for file in {file for file, _ in places.values()})
    chosen = {field: forms[places[field][0]][places[field][1]] for field in order}
    return Shard(name, count, {field: places[field] for field in order}, chosen, size)
