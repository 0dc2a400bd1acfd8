"""Finding the samples of many tar shards, in several processes where that saves time."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from datasets.data_files import DataFiles
from datasets.file_reader import MissingFile
from datasets.formats.tar_headers import BadTar
from datasets.formats.tar_samples import SampleFields
from datasets.formats.tar_shards import ShardScan, scan_shard
from datasets.shared_file import SharedFile
from pipeline.cores import usable_cores

_Shard = tuple[str, int]
_Scan = Callable[[_Shard], ShardScan]
# Below this, processes take longer to start than they save.
_WORTH_S = 4.0


def scan_shards(files: DataFiles, fields: SampleFields, *, where: str) -> list[ShardScan]:
    """Find the samples of all shards; see `datasets.formats.tar_shards.scan_shard`.

    How long the first shards take tells whether other processes help with the rest.

    Args:
        files: The shards.
        fields: Which members count.
        where: The storage, for messages.

    Raises:
        ValueError: A shard is damaged, or gone; one line.
        OSError: The disk has trouble that did not pass.
    """
    scan = functools.partial(_scan_one, files.root, fields, where)
    shards = [(name, size) for name, (size, _) in zip(files.names, files.marks, strict=True)]
    scans: list[ShardScan] = []
    start = time.monotonic()
    for shard in shards:
        left = len(shards) - len(scans)
        seconds = time.monotonic() - start
        if scans and left > 1 and seconds / len(scans) * left > _WORTH_S:
            break
        scans.append(scan(shard))
    rest = shards[len(scans) :]
    count = min(usable_cores(), len(rest))
    if count < 2:
        return scans + [scan(shard) for shard in rest]
    found: list[ShardScan | str | None] = [None] * len(rest)
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(lambda k: _scan_elsewhere(scan, rest[k::count]), range(count))
        for k, part in enumerate(parts):
            found[k::count] = part
    for shard, one in zip(rest, found, strict=True):
        if isinstance(one, str):
            raise ValueError(one)
        scans.append(scan(shard) if one is None else one)
    return scans


def _scan_elsewhere(scan: _Scan, shards: Sequence[_Shard]) -> Sequence[ShardScan | str | None]:
    """Scan shards in a process that has nothing of this one's, and so does not run its program.

    Returns:
        Of each shard its samples, what is wrong with it, or None where the process failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
        input=pickle.dumps((scan, shards)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if done.returncode:
        return [None] * len(shards)
    found: Sequence[ShardScan | str] = pickle.loads(done.stdout)
    return found


def serve() -> None:
    """What the other process does: shards by its standard input, samples by its output."""
    scan, shards = pickle.load(sys.stdin.buffer)
    found: list[ShardScan | str] = []
    for shard in shards:
        try:
            found.append(scan(shard))
        except ValueError as error:
            found.append(str(error))
    pickle.dump(found, sys.stdout.buffer)


def _scan_one(root: str, fields: SampleFields, where: str, shard: _Shard) -> ShardScan:
    name, size_bytes = shard
    try:
        return scan_shard(SharedFile(os.path.join(root, name), root=root), size_bytes, fields)
    except (BadTar, MissingFile) as error:
        raise ValueError(f"{where}: {name}: {error}") from error
