"""Records into `.pt` files, one per part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from datasets.parts import PartSummary
from datasets.shard_writer import ShardWriter
from pipeline.registry import register


@register("writer", "pt_shards")
class PtShardsWriter(ShardWriter):
    """A folder of ``00000.pt``, ..., each a dict of tensors, which `torch.load` opens.

    Values of differing shapes are `datasets.shard_writer.ShardWriter`'s: ``image.offsets`` and so
    on in the same dict.
    """

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        _tensors(arrays)

    def _write(
        self, folder: Path, number: int, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        import torch

        name = f"{number:05d}.pt"
        torch.save(_tensors(arrays), folder / name)
        return (name,)

    def _fields(self, folder: Path, summary: PartSummary) -> set[str]:
        import torch

        [name] = summary.written.files
        saved = torch.load(folder / name, weights_only=True, mmap=True)
        return {field for field in saved if "." not in field}


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Tensors of arrays, in the machine's byte order.

    Raises:
        ValueError: torch has no such type.
    """
    import torch

    tensors = {}
    for name, array in arrays.items():
        try:
            native = array.astype(array.dtype.newbyteorder("="))
            tensors[name] = torch.from_numpy(native)
        except TypeError:
            raise ValueError(
                f"pack: the field {name!r} holds {array.dtype}, of which torch has no type; "
                f"convert or drop it"
            ) from None
    return tensors
