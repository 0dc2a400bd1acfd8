"""Some records of a data set packed into every form that can hold them."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.protocols import Storage
from datasets.recoded import Recode
from datasets.sample import Record
from datasets.writing import write_storage
from pipeline.blame import is_explained
from pipeline.commands.bench.storage_process import Measured, opener
from pipeline.config.errors import ConfigError, Problem, nearest
from pipeline.config.objects import build
from pipeline.packing.report import folder_bytes
from pipeline.registry import components, find, option_node

SAMPLE_BYTES = 256 * 10**6
_RECORDS = 10_000
_LOOKED_AT = 64
_RUNS = 16
_PAGE = 4096
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True)
class Form:
    """One form of the data, or the source itself.

    Attributes:
        name: The storage's name; of the source, with an asterisk.
        opens: What opens it, pickled; empty where it could not be packed.
        size_bytes: On the disk; None where it is not known.
        pack_s: Seconds that packing took, in one process.
        first: What the process that opened it first found.
        rounds: What the others found.
        why: Why it could not be packed or measured, or "".
    """

    name: str
    opens: bytes = b""
    size_bytes: int | None = None
    pack_s: float = 0.0
    first: Measured | None = None
    rounds: list[Measured] = field(default_factory=list)
    why: str = ""


def form_names(wanted: bool | str | Sequence[str]) -> list[str]:
    """The forms that can be written, or those of them that were asked for.

    Raises:
        ConfigError: There is no such form, or one was given twice.
    """
    known = [component.name for component in components("writer")]
    if wanted is True or wanted is False:
        return known
    wanted = [wanted] if isinstance(wanted, str) else wanted
    problems = []
    for name in wanted:
        if name not in known:
            near = nearest(name, known)
            text = f"no form {name!r} can be written, the forms are {', '.join(known)}"
            problems.append(Problem("bench.storages", f"{text}; type [{near or known[0]}]"))
        elif list(wanted).count(name) > 1:
            problems.append(Problem("bench.storages", f"{name} is given twice"))
    if problems:
        raise ConfigError(problems)
    return list(wanted)


def sampled_rows(source: Storage, records: int | None) -> NDArray[np.int64]:
    """Which records are packed: evenly spread runs, so that the order within them is kept.

    Args:
        source: The records.
        records: How many; None: 10,000, or as many as make 256 MB, by the size of some.

    Returns:
        int64 [n], ascending.
    """
    count = len(source)
    if records is None:
        size = max(1.0, sum(map(size_of, some_of(source))) / max(len(some_of(source)), 1))
        records = max(1, min(_RECORDS, int(SAMPLE_BYTES / size)))
    if records >= count:
        return np.arange(count)
    runs = min(_RUNS, records)
    starts = np.arange(runs) * count // runs
    lengths = (np.arange(runs) + 1) * records // runs - np.arange(runs) * records // runs
    return np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])


def some_of(source: Storage) -> list[Record]:
    """A few evenly spaced records, the good ones of them."""
    rows = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    return [record for record in source.read(rows) if isinstance(record, Record)]


def size_of(record: Record) -> int:
    """Bytes of a record's files, arrays and texts."""
    return sum(
        getattr(value, "nbytes", None) or (len(value) if isinstance(value, (bytes, str)) else 8)
        for value in record.fields.values()
    )


def refuse_full(folder: Path, count: int, mean_bytes: float) -> None:
    """Refuse to begin a form for which there is no room.

    Args:
        folder: Where it is packed.
        count: How many records there are.
        mean_bytes: Of a record; forms round it up and add at most about a page.

    Raises:
        ValueError: There is less room than it may take.
    """
    needed, free = count * (mean_bytes + _PAGE), shutil.disk_usage(folder).free
    if free < needed:
        text = f"{free / 1e6:,.1f} MB are free, a form may take {needed / 1e6:,.1f} MB"
        raise _full(folder, text)


def _full(folder: Path, text: str) -> ValueError:
    return ValueError(
        f"bench storages: {folder}: {text}; give fewer bench.records, or a folder with more room "
        f"(TMPDIR=..., bench.keep=...)"
    )


def pack_form(
    name: str, source: Storage, folder: Path, *, recode: Recode | None = None, share: float = 1.0
) -> Form:
    """Pack records into one form; what it cannot hold, or what is missing for it, is its `why`.

    Args:
        name: The writer's.
        source: The records.
        folder: Does not exist; is made, or not if it cannot be.
        recode: Changes each record.
        share: Of the whole that these records are: a cache of `cache_bytes` is so much smaller,
            and holds as much of them as it would of the whole.

    Raises:
        ValueError: The disk is full.
    """
    component = find(f"writer/{name}")
    assert component is not None
    form = Form(name)
    try:
        writer = build(option_node(component))
        start = time.perf_counter()
        write_storage(writer, folder, source, recode=recode)
        form.pack_s = time.perf_counter() - start
    except (ValueError, ImportError) as error:
        if not isinstance(error, ImportError) and not is_explained(error):
            raise
        form.why = _line(error).removeprefix(f"{name}: ")
        return form
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(folder.parent, error.strerror or str(error)) from error
    form.size_bytes = folder_bytes(folder)
    storage = find(f"storage/{name}")
    if storage is None:
        form.why = f"no storage named {name!r} is registered, by which it could be read"
        return form
    make: Callable[..., Any] = storage.target
    arguments = dict(writer.storage_arguments)
    cache_bytes = option_node(storage).get("cache_bytes")
    if share < 1 and isinstance(cache_bytes, int):
        arguments["cache_bytes"] = int(cache_bytes * share)
    form.opens = opener(partial(make, os.path.abspath(folder), **arguments))
    return form


def _line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return text.removeprefix("pack: ")


def measured(forms: Sequence[Form]) -> Iterator[Form]:
    """Those of which there are figures."""
    return (form for form in forms if form.first is not None and form.rounds and not form.why)
