"""All splits of a data set packed into one folder, which appears when it is whole."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.index import write_whole
from datasets.parts import PackPlan, PartSummary
from datasets.protocols import Storage, Writer
from datasets.recoded import Recode
from pipeline.packing.duplicates import refuse_duplicates
from pipeline.packing.made import remove_hidden, write_about
from pipeline.packing.report import folder_bytes, speed_line, summary_lines
from pipeline.packing.split import pack_split
from pipeline.packing.staging import Staging
from pipeline.packing.verify import open_packed

BAD_RECORDS = "bad_records.csv"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What is packed, and how.

    Attributes:
        sources: The records by split, none of them empty.
        target: The folder to make.
        writer: Writes the form.
        name: The writer's name, and its storage's.
        recipe: What decides about the result; see `Staging`.
        recode: Changes each record, or None.
        skip_bad: Leave out records that cannot be read, and list them.
        overwrite: Replace what packing made at `target`.
        verify_all: Read all of the result again.
        num_workers: Processes.
        at_once: They are started at once, and not only where much is left after the first part.
        imports: Modules of the user's.
    """

    sources: Mapping[str, Storage]
    target: Path
    writer: Writer
    name: str
    recipe: Mapping[str, Any]
    recode: Recode | None
    skip_bad: bool
    overwrite: bool
    verify_all: bool
    num_workers: int
    imports: Sequence[str]
    at_once: bool = True

    @property
    def about(self) -> dict[str, Any]:
        """How the result is read."""
        return {"storage": self.name, "arguments": dict(self.writer.storage_arguments)}


def pack(packing: Packing) -> int:
    """Pack, say how it goes, and go on where an earlier run was left.

    Returns:
        The exit status: 0, or 130 or 143 after Ctrl-C or SIGTERM.

    Raises:
        ValueError: It cannot be done; nothing appears at the target, and sources are as they were.
    """
    target = packing.target
    for source in packing.sources.values():
        refuse_duplicates(source)
    staging = Staging(target, dict(packing.recipe), overwrite=packing.overwrite)
    with terminated_as_interrupt() as came:
        try:
            with staging:
                before = staging.is_begun
                try:
                    _fill(packing, staging)
                except BaseException:
                    if staging.has_parts:
                        print(f"what is written is kept in {staging.folder}")
                    elif not before:
                        staging.give_up()
                    raise
        except KeyboardInterrupt:
            print("stopped; the same command goes on")
            return 128 + (came or [signal.SIGINT])[0]
        except OSError as error:
            raise _explained(error, target) from error
    for split, source in packing.sources.items():
        print(f"{split}: {speed_line(source, open_packed(target / split, packing.about))}")
    return 0


def _fill(packing: Packing, staging: Staging) -> None:
    """Pack all splits into the staging folder, and let it take its place."""
    packed = {}
    lines = {}
    for split, source in packing.sources.items():
        start = time.perf_counter()
        plan, summaries, written = pack_split(
            staging, split, source, packing.writer,
            about=packing.about, recode=packing.recode, skip_bad=packing.skip_bad,
            verify_all=packing.verify_all, num_workers=packing.num_workers,
            at_once=packing.at_once, imports=packing.imports,
        )  # fmt: skip
        packed[split] = summaries
        seconds = time.perf_counter() - start
        size = folder_bytes(staging.result / split)
        lines[split] = [
            f"{split}: {sum(map(len, summaries)):,} records, {_source_size(source)}"
            f"{size / 1e6:,.1f} MB in {seconds:.1f} s ({written / seconds:,.0f} records/s) -> "
            f"{packing.target / split}",
            *(f"  {line}" for line in _about_data(plan, summaries)),
        ]
    remove_hidden(staging.result, os.listdir(staging.result))
    _write_bad_records(staging.result, packed)
    write_about(staging.result, list(packed), packing.recipe)
    staging.publish()
    print("\n".join(line for split in lines for line in lines[split]))
    if (packing.target / BAD_RECORDS).exists():
        print(f"records that cannot be read are listed in {packing.target / BAD_RECORDS}")


def _about_data(plan: PackPlan, summaries: list[PartSummary]) -> list[str]:
    return summary_lines(summaries, plan.class_names)


def _source_size(source: Storage) -> str:
    """How large the records were, where their index says it."""
    if "size_bytes" not in source.index.columns:
        return ""
    return f"{int(source.index.column('size_bytes').sum(dtype='int64')) / 1e6:,.1f} MB as "


def _write_bad_records(folder: Path, packed: Mapping[str, Sequence[PartSummary]]) -> None:
    rows = [
        (split, bad.key, bad.cause)
        for split, summaries in packed.items()
        for summary in summaries
        for bad in summary.bad
    ]
    if not rows:
        return
    text = io.StringIO()
    csv.writer(text).writerows([("split", "key", "cause"), *rows])
    content = text.getvalue().encode("utf-8", "surrogateescape")
    write_whole(folder / BAD_RECORDS, lambda file: file.write(content))


def _explained(error: OSError, target: Path) -> ValueError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return ValueError(
            f"pack: {target}: {reason}; free some space, and the same command goes on"
        )
    where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
    return ValueError(
        f"pack: {target}: {reason}{where}; put it right, and the same command goes on"
    )


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[list[int]]:
    """While entered, SIGTERM ends like Ctrl-C; gives the signals that came."""
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
