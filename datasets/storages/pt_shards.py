"""Read and write many `.pt` files of one or more samples each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.registry import register
from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.array_shards.shards import Columns
from penstock.datasets.array_shards.storage import ArrayForm, open_arrays
from penstock.datasets.array_shards.writer import ShardWriter
from penstock.datasets.files.access import RangeFile, RangeStream, retried
from penstock.datasets.files.zip_members import list_members, read_member
from penstock.datasets.records.labels import FileLabels, Unlabelled

if TYPE_CHECKING:
    import torch

_REMEDY = "save tensors, or lists and dicts of them, with torch.save"


def load_pt(path: str, *, root: str, where: str, checksums: bool) -> Any:
    """Load a file of `torch.save` onto the CPU, with mapped tensors; never runs its code.

    With `checksums`, reads the whole file and verifies it.

    Raises:
        ValueError: The file is damaged, of the old format, or would run code; one line.
        penstock.datasets.files.access.MissingFile: The file is missing.
        OSError: An I/O error persisted.
    """
    import torch

    file = RangeFile(path, root=root)
    size = retried(lambda: os.stat(path).st_size, path=path, root=root)
    if file.read_upto(0, 2) != b"PK":
        raise ValueError(
            f"{where} is damaged, no file of torch.save, or one of its old format, which cannot "
            f"be mapped; {_REMEDY} of torch 1.6 or later"
        )
    name = ""
    try:
        for member in list_members(RangeStream(file, size)):
            name = f"{member.name}: "
            if member.name.endswith("/constants.pkl"):
                raise ValueError(
                    f"{where} is a program (TorchScript), which is never run; {_REMEDY}"
                )
            # The library does not verify mapped tensors; the other members are small.
            if checksums or "/data/" not in member.name:
                read_member(file, member)
    except RecordError as error:
        again = "; copy it again" if name else ""
        raise ValueError(f"{where}: {name}{error}{again}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many types, for damage and for refused content
        if isinstance(error, OSError) or is_trouble(error):
            raise
        said = " ".join(str(error).split()).partition(" This file can still be loaded")[0]
        raise ValueError(
            f"{where} holds other things than tensors, or is damaged ({said[:200]}); {_REMEDY}"
        ) from None


def to_array(tensor: torch.Tensor, where: str) -> NDArray[Any]:
    """Return a read-only array over a tensor's memory.

    Raises:
        ValueError: The tensor is sparse, quantized, or of a type that only torch has.
    """
    try:
        array = tensor.detach().numpy()
    except (TypeError, RuntimeError):
        kind = "strided" if str(tensor.layout) == "torch.strided" else str(tensor.layout)[6:]
        raise ValueError(
            f"{where} is a {kind} tensor of {str(tensor.dtype)[6:]}, which cannot become an array; "
            f"save a dense one of a plain type, such as float32 or float16"
        ) from None
    array.flags.writeable = False
    return array


class Items:
    """Values of a list, by row; tensors become arrays."""

    def __init__(self, values: Sequence[Any], where: str) -> None:
        self._values = values
        self._where = where

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: int) -> Any:
        """Return a value.

        Raises:
            RecordError: Its type is unsupported.
        """
        try:
            return _plain(self._values[row], f"{self._where}: row {row}")
        except ValueError as error:
            raise RecordError(str(error)) from error


class PtForm(ArrayForm):
    """Files of `torch.save`: tensors, and lists and dicts of them."""

    name = "pt_shards"
    endings = (".pt", ".pth")

    def columns(self, path: str, root: str, where: str, *, checked: bool) -> Columns:
        """Map the tensors of a file."""
        import torch

        saved = load_pt(path, root=root, where=where, checksums=checked)
        if isinstance(saved, Mapping):
            if not saved:
                raise ValueError(f"{where} holds no tensor; {_REMEDY}")
            return {
                str(name): _column(value, f"{where}: {name!r}") for name, value in saved.items()
            }
        if isinstance(saved, torch.Tensor):
            return {None: _column(saved, where)}
        if isinstance(saved, list) and saved:
            if all(isinstance(value, torch.Tensor) for value in saved):
                return {None: Items(saved, where)}
            if all(isinstance(one, Mapping) and one.keys() == saved[0].keys() for one in saved):
                return {
                    str(name): _column([one[name] for one in saved], f"{where}: {name!r}")
                    for name in saved[0]
                }
        raise ValueError(
            f"{where} holds a {type(saved).__name__}, expected a tensor [N, ...], a dict of these "
            f"or a list of tensors or of dicts with the same fields; save one of them"
        )

    def sample(self, path: str, root: str, *, checked: bool, max_bytes: int) -> dict[str, Any]:
        """Read a tensor as ``array``, or a dict of tensors and plain values."""
        import torch

        saved = load_pt(path, root=root, where="it", checksums=checked)
        if isinstance(saved, torch.Tensor):
            return {"array": to_array(saved, "it")}
        if not isinstance(saved, Mapping):
            raise ValueError(f"it holds a {type(saved).__name__}, expected a tensor or a dict")
        return {str(name): _plain(value, f"it: {name!r}") for name, value in saved.items()}


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


@register("storage", "pt_shards")
def open_pt_shards(
    path: str,
    *,
    rows: bool = True,
    labels: str | None = "folder",
    label_pattern: str | None = None,
    label_columns: tuple[str, str] = ("key", "label"),
    unlabelled: Unlabelled = None,
    classes: list[str] | None = None,
    checksums: bool = False,
) -> Storage:
    """Tensors in many `.pt` files, mapped; files that would run code are refused.

    With `rows`, a file holds some of the samples. A dict of tensors [N, ...] or lists of N values
    is a shard with a field for each; so is a list of N dicts. A tensor or a list of tensors is
    one field, named by the file: ``images_007.pt`` is the field ``image`` of shard
    007, and ``labels_007.pt``, ``images/007.pt`` or ``007/images.pt`` belong to it. All shards
    have the same fields; if their shapes and types agree too, batches are read as a whole.
    ``keys`` holds the keys; the default is row numbers.

    Without `rows`, a file is a sample: a tensor is the field ``array``, a dict a field for each
    of its values. Keys are paths; labels work as in an image folder.

    Args:
        path: A folder, a file, or a pattern.
        rows: Whether files hold samples along their first axis, or are one sample each.
        labels: Without `rows`: ``folder``, ``filename``, the path of a CSV, ``file`` (labels inside
            the files, which are all read once), or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the columns of the keys and of the labels.
        unlabelled: Files without a row in the CSV; see `ImageFolder`.
        classes: Class names by id; None: with `rows`, the lines of ``classes.txt``, or the numbers;
            without, the classes found.
        checksums: Verify a file when a process opens it, which reads all of it.
    """
    label_files = partial(FileLabels.of, labels, label_pattern, label_columns, unlabelled)
    return open_arrays(
        PtForm(), path, rows=rows, labels=label_files, classes=classes, checksums=checksums
    )


@register("writer", "pt_shards")
class PtShardsWriter(ShardWriter):
    """A folder of ``00000.pt``, ..., each a dict of tensors, which `torch.load` opens."""

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        _tensors(arrays)

    def _write(
        self, folder: Path, number: int, keys: list[str], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        import torch

        name = f"{number:05d}.pt"
        torch.save({"key": keys, **_tensors(arrays)}, folder / name)
        return (name,)


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Convert arrays to tensors, in the machine's byte order."""
    import torch

    tensors = {}
    for name, array in arrays.items():
        try:
            native = array.astype(array.dtype.newbyteorder("="))
            tensors[name] = torch.from_numpy(native)
        except TypeError:
            raise ValueError(
                f"pack: the field {name!r} holds {array.dtype}, a type that torch lacks; "
                f"convert or drop it"
            ) from None
    return tensors
