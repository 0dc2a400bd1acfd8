"""Keep the tensors that ranks hold parts of beside a checkpoint: each rank writes its own parts.

The format is that of ``torch.distributed.checkpoint``, whose readers put parts together again for
any number of ranks.
"""

from __future__ import annotations

import secrets
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.training.distributed.world import World

if TYPE_CHECKING:
    import torch

PATTERN = "shards-*"
_MARK = "sharded"
_CHUNK_BYTES = 8 << 20


def write_shards(content: Mapping[str, Any], folder: Path, world: World) -> dict[str, Any]:
    """Write the tensors of a checkpoint that ranks hold parts of; every rank calls this.

    Args:
        content: Of the checkpoint, with this rank's parts.
        folder: Where the checkpoint will lie; all ranks see it.
        world: The ranks.

    Returns:
        The content with the names of these tensors in their places, and under ``shards`` the
        folder that they are in and the checksums of its files.

    Raises:
        OSError: A rank could not write.
        ValueError: Rank 0 does not see what another has written.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.tensor import DTensor

    tensors: dict[str, Any] = {}

    def put_apart(value: Any, name: str) -> Any:
        if not isinstance(value, DTensor):
            return value
        tensors[name] = value
        return {_MARK: name}

    rest = _changed(content, put_apart)
    place = folder / PATTERN.replace("*", world.on_main(lambda: secrets.token_hex(6)))
    try:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(place))
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise (
            cause
            if isinstance(cause, OSError)
            else ValueError(f"checkpoint: rank {rank} could not write to {place}: {cause}")
        ) from error
    own = [*place.glob(f"__{world.rank}_*"), *([place / ".metadata"] if world.is_main else [])]
    parts = world.gather({file.name: _checksum(file) for file in own})
    files = {name: checksum for part in parts for name, checksum in part.items()}
    world.on_main(lambda: _check_seen(place, files))
    return {**rest, "shards": {"folder": place.name, "files": files}}


def read_shards(
    content: Mapping[str, Any], path: Path, empty: Callable[..., torch.Tensor]
) -> dict[str, Any]:
    """Put the tensors of shards in their places; each rank may do it for itself.

    Torch unpickles what says where each part lies: read shards of people that you trust.

    Args:
        content: What a checkpoint's file holds.
        path: The checkpoint.
        empty: Makes room for a tensor, called with its size and ``dtype``.

    Raises:
        ValueError: Shards are missing or damaged.
    """
    import torch.distributed.checkpoint as dcp

    check_shards(content["shards"], path)
    reader = dcp.FileSystemReader(path.parent / content["shards"]["folder"])
    found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {n: empty(each.size, dtype=each.properties.dtype) for n, each in found.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody else reads at the same time
        dcp.load(tensors, storage_reader=reader, no_dist=True)

    def put_back(value: Any, _: str) -> Any:
        is_mark = isinstance(value, dict) and value.keys() == {_MARK}
        return tensors[value[_MARK]] if is_mark else value

    return _changed(content, put_back)


def _changed(value: Any, change: Callable[[Any, str], Any], name: str = "") -> Any:
    """Change values, in whatever dicts and lists they are, by the names that lead to them."""
    changed = change(value, name)
    if changed is not value:
        return changed
    if isinstance(value, Mapping):
        return {key: _changed(each, change, f"{name}/{key}") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(each, change, f"{name}/{i}") for i, each in enumerate(value))
    return value


def _check_seen(place: Path, files: Mapping[str, int]) -> None:
    """Refuse shards that others have written where this process does not see them."""
    unseen = [name for name in files if not (place / name).is_file()]
    if unseen:
        raise ValueError(
            f"trainer.strategy is fsdp, and {place} has no {unseen[0]}, which another rank has "
            f"written; give outputs=FOLDER that all machines see"
        )


def check_shards(shards: Mapping[str, Any], path: Path) -> None:
    """Compare the files that a checkpoint names with their checksums.

    Args:
        shards: What it says under ``shards``.
        path: The checkpoint.

    Raises:
        ValueError: Shards are missing or damaged.
    """
    for name, checksum in shards["files"].items():
        file = path.parent / shards["folder"] / name
        if not file.is_file():
            raise ValueError(
                f"checkpoint {path} lacks {file}; where it was copied, copy that folder too"
            )
        if _checksum(file) != checksum:
            raise ValueError(f"checkpoint {path} is damaged: checksum of {file}")


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
