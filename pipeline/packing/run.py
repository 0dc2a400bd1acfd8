"""Pack the splits of a data set into one folder, which appears when it is whole."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage, Writer
from penstock.core.files import write_whole
from penstock.core.parts import PackPlan, Part, PartSummary
from penstock.core.user_errors import DiskError
from penstock.datasets.writing import Recode, check_labels, make_plan, sync_files, write_part
from penstock.pipeline.packing.parts import Parts
from penstock.pipeline.packing.report import Screen, folder_bytes, summary_lines
from penstock.pipeline.packing.staging import Staging
from penstock.pipeline.packing.verify import (
    cache_in,
    compare_all,
    files_in,
    open_packed,
    read_mark,
    refuse_duplicates,
    remove_hidden,
    verify,
    write_about,
    write_mark,
)
from penstock.pipeline.packing.workers import do_tasks

BAD_RECORDS = "bad_records.csv"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Of no more parts than this, starting processes takes longer than copying them.
_FEW_PARTS = 4
_SENT = "penstock-pack-"  # folders of parts that are written to be sent
_LEFT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Everything about one packing.

    Attributes:
        sources: The records by split, none of them empty.
        target: The folder to make.
        writer: Writes the form.
        name: The writer's name, and its storage's.
        recipe: Values that decide about the result; see `Staging`.
        recode: Changes each record, or None.
        skip_bad: Leave out records that cannot be read, and list them.
        overwrite: Replace what packing made at `target`.
        verify_all: Read all of the result again.
        num_workers: Processes.
        launcher: Where they run: ``local`` or ``ray``.
        for_few_parts: They are started for a few parts too, which take long.
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
    launcher: str = "local"
    for_few_parts: bool = True

    def place(self, name: str) -> str:
        """Name the future content of the folder, for messages."""
        return f"{self.target}/{name}"

    @property
    def about(self) -> dict[str, Any]:
        """Name of the storage that reads the result."""
        return {"storage": self.name}


def pack(packing: Packing) -> int:
    """Pack, print progress, and resume where an earlier run was left.

    Returns:
        The exit status: 0, or 130 or 143 after Ctrl-C or SIGTERM.

    Raises:
        ValueError: It cannot be done; nothing appears at the target, and sources are as they were.
    """
    target = packing.target
    for source in packing.sources.values():
        refuse_duplicates(source)
    staging = Staging(target, dict(packing.recipe), overwrite=packing.overwrite)
    with terminated_as_interrupt():
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
        except KeyboardInterrupt as error:
            print("stopped; to resume, repeat the command")
            return 128 + (error.args or (signal.SIGINT,))[0]
        except OSError as error:
            raise _explained(error, target) from error
    return 0


def _fill(packing: Packing, staging: Staging) -> None:
    """Pack all splits into the staging folder, and let it take its place."""
    packed, lines = {}, []
    for split, source in packing.sources.items():
        start = time.perf_counter()
        plan, summaries, written = pack_split(staging, split, packing)
        packed[split] = summaries
        seconds = time.perf_counter() - start
        size = folder_bytes(staging.result / split)
        lines += [
            f"{split}: {sum(map(len, summaries)):,} records, {_source_size(source)}"
            f"{size / 1e6:,.1f} MB in {seconds:.1f} s ({written / seconds:,.0f} records/s) -> "
            f"{packing.place(split)}",
            *(f"  {line}" for line in summary_lines(summaries, plan.class_names)),
        ]
    remove_hidden(staging.result, os.listdir(staging.result))
    _write_bad_records(staging.result, packed)
    write_about(staging.result, list(packed), packing.recipe)
    staging.publish()
    print("\n".join(lines))
    if (packing.target / BAD_RECORDS).exists():
        print(f"records that cannot be read are listed in {packing.place(BAD_RECORDS)}")


def _source_size(source: Storage) -> str:
    """Say how large the records were, where their index knows it."""
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
    write_whole(folder / BAD_RECORDS, text.getvalue().encode("utf-8", "surrogateescape"))


def _explained(error: OSError, target: Path) -> DiskError:
    reason, remedy = error.strerror or str(error), "correct it"
    if error.errno in _FULL:
        remedy = "free some space"
    elif error.filename:
        reason += f" ({os.fsdecode(error.filename)})"
    return DiskError(f"pack: {target}: {reason}; {remedy} and repeat the command to resume")


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """While entered, SIGTERM ends like Ctrl-C: as a KeyboardInterrupt, with its number."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class WritePart:
    """Writes parts, in any process; see `datasets.writing.write_part`."""

    writer: Writer
    folder: Path
    plan: PackPlan
    source: Storage
    recode: Recode | None
    skip_bad: bool

    def __call__(self, task: Part) -> PartSummary:
        """Write one part."""
        return write_part(
            self.writer, self.folder, self.plan, task, self.source,
            recode=self.recode, skip_bad=self.skip_bad,
        )  # fmt: skip

    def name(self, task: Part) -> str:
        """Name the records."""
        return f"records {task.start:,} to {task.stop - 1:,} of {self.source}"


@dataclass(frozen=True, slots=True)
class SendPart:
    """Writes parts on machines that may not see the folder of the result, and sends the files."""

    work: WritePart

    def __call__(self, task: Part) -> tuple[PartSummary, list[NDArray[np.uint8]]]:
        """Write one part; with the content of its files, in the order of their marks."""
        for left in Path(gettempdir()).glob(f"{_SENT}*"):  # by a process that was killed
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    shutil.rmtree(left)
        with TemporaryDirectory(prefix=_SENT) as folder:
            summary = replace(self.work, folder=Path(folder))(task)
            return summary, [np.fromfile(Path(folder, name), np.uint8) for name in summary.marks]

    def name(self, task: Part) -> str:
        """Name the records."""
        return self.work.name(task)


def _receive(folder: Path, sent: tuple[PartSummary, list[NDArray[np.uint8]]]) -> PartSummary:
    """Write the files of a part that was sent."""
    summary, contents = sent
    for name, content in zip(summary.marks, contents, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.data)
    found = sync_files(folder, list(summary.marks))
    if found != summary.marks:
        raise RuntimeError(f"pack: {summary.part} did not arrive as it was written")
    return summary


def pack_split(
    staging: Staging, split: str, packing: Packing
) -> tuple[PackPlan, list[PartSummary], int]:
    """Write, finish and verify a split, resuming where it was left.

    Returns:
        The plan, the parts, and how many records were written this time.
    """
    source, writer = packing.sources[split], packing.writer
    folder = staging.result / split
    folder.mkdir(exist_ok=True)
    plan = make_plan(writer, source, packing.recode)
    writer.begin(folder, plan)
    parts = Parts(staging.journal / split, folder, plan, skip_bad=packing.skip_bad)
    missing = [part for part in plan.parts if part.number not in parts.found]
    before = sum(map(len, parts.found.values()))
    if before:
        print(f"{split}: resuming, {before:,} of {len(source):,} records are written already")
    is_few = len(missing) <= (1 if packing.for_few_parts else _FEW_PARTS)
    num_workers = 0 if is_few else packing.num_workers
    write = WritePart(writer, folder, plan, source, packing.recode, packing.skip_bad)
    sends = bool(num_workers) and packing.launcher != "local"
    written = do_tasks(
        SendPart(write) if sends else write,
        missing,
        num_workers=num_workers,
        lock=None if sends else staging.workers_lock,
        imports=packing.imports,
        launcher=packing.launcher,
    )
    # Whatever happens, no process is left, and no part half noted.
    with Screen(split, len(source), before) as screen, closing(written):
        for part, result in written:
            summary = _receive(folder, result) if sends else result
            parts.add(summary)
            screen.add(len(part), int(summary.sizes.sum()))
    summaries = parts.end()
    check_labels(source, summaries)
    if not any(map(len, summaries)):
        raise ValueError(f"pack: {source}: not one of its records can be read")
    remove_hidden(folder, files_in(folder))
    writer.finish(folder, plan, summaries)
    write_mark(folder, plan, summaries, packing.about)
    with cache_in(staging.folder / "cache"):
        mark = read_mark(folder)
        storage = open_packed(folder, packing.about)
        verify(storage, mark, summaries, plan.class_names)
        if packing.verify_all and (damaged := compare_all(
            storage, mark, num_workers=packing.num_workers, imports=packing.imports,
            what=f"verify {split}",
        )):  # fmt: skip
            raise RuntimeError(f"pack: {storage}: {damaged[0]} ({len(damaged)} damaged records)")
    return plan, summaries, sum(map(len, summaries)) - before
