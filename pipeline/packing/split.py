"""One split: its parts written, joined in order, finished and verified."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets.parts import PackPlan, Part, PartSummary
from datasets.protocols import Storage, Writer
from datasets.recoded import Recode
from datasets.writing import check_labels, make_plan, write_part
from pipeline.packing.journal import Journal, numbered
from pipeline.packing.made import files_in, read_mark, remove_hidden, write_mark
from pipeline.packing.screen import show
from pipeline.packing.staging import Staging
from pipeline.packing.verify import cache_in, compare_all, open_packed, verify
from pipeline.packing.workers import Tell, do_tasks

# Starting processes takes about a second, in which this one does much itself.
_WORTH_STARTING_S = 4.0


@dataclass(frozen=True, slots=True)
class WritePart:
    """Writes parts, in any process; see `datasets.writing.write_part`."""

    writer: Writer
    folder: Path
    plan: PackPlan
    source: Storage
    recode: Recode | None
    skip_bad: bool

    def __call__(self, task: Part, tell: Tell) -> PartSummary:
        """Write one part."""
        return write_part(
            self.writer, self.folder, self.plan, task, self.source,
            recode=self.recode, skip_bad=self.skip_bad, progress=tell,
        )  # fmt: skip

    def name(self, task: Part) -> str:
        """Which records."""
        return f"records {task.start:,} to {task.stop - 1:,} of {self.source}"


def pack_split(
    staging: Staging,
    split: str,
    source: Storage,
    writer: Writer,
    *,
    about: Mapping[str, Any],
    recode: Recode | None,
    skip_bad: bool,
    verify_all: bool,
    num_workers: int,
    at_once: bool,
    imports: Sequence[str],
) -> tuple[PackPlan, list[PartSummary], int]:
    """Write, join, finish and verify a split, going on where it was left.

    Args:
        staging: Where.
        split: ``train`` or ``val``.
        source: The records.
        writer: How.
        about: Name and arguments of the storage that reads it.
        recode: Changes each record.
        skip_bad: Leave out records that cannot be read.
        verify_all: Read all of it again.
        num_workers: Processes; one part alone needs none.
        at_once: Start them at once. False: do the first part without, and start them if the rest
            would take some seconds: where files are only copied, they seldom make up for that.
        imports: Modules of the user's.

    Returns:
        The plan, the parts, and how many records were written this time.
    """
    folder = staging.result / split
    folder.mkdir(exist_ok=True)
    plan = make_plan(writer, source, recode)
    writer.begin(folder, plan)
    journal = staging.journal(split)
    parts = _Parts(writer, folder, plan, journal, skip_bad)
    missing = parts.missing
    before = sum(map(len, parts.found.values()))
    if before:
        print(f"{split}: going on, {before:,} of {len(source):,} records are written already")
    screen = show(split, len(source), before)
    try:
        parts.join()
        work = WritePart(writer, folder, plan, source, recode, skip_bad)
        start = partial(do_tasks, lock=staging.workers_lock, imports=imports, tell=screen.add)
        done = _written(work, missing, start, num_workers=num_workers, at_once=at_once)
        # Whatever happens, no process is left, and no part half noted.
        with closing(done), _Behind() as behind:
            for _, summary in done:
                behind.do(partial(parts.add, summary))
    finally:
        screen.close()
    summaries = parts.end()
    check_labels(source, summaries)
    if not any(map(len, summaries)):
        raise ValueError(f"pack: {source}: not one of its records can be read")
    remove_hidden(folder, files_in(folder))
    writer.finish(folder, plan, summaries)
    write_mark(folder, plan, summaries, about)
    with cache_in(staging.folder / "cache"):
        mark = read_mark(folder)
        storage = open_packed(folder, about)
        verify(storage, mark, summaries, plan.class_names)
        if verify_all and (damaged := compare_all(
            storage, mark, num_workers=num_workers, imports=imports, what=f"verify {split}"
        )):  # fmt: skip
            raise RuntimeError(f"pack: {storage}: {damaged[0]} ({len(damaged)} damaged records)")
    return plan, summaries, sum(map(len, summaries)) - before


def _written(
    work: WritePart,
    missing: Sequence[Part],
    start: Callable[..., Generator[tuple[Part, PartSummary], None, None]],
    *,
    num_workers: int,
    at_once: bool,
) -> Generator[tuple[Part, PartSummary], None, None]:
    """Parts as they get written, by `start`, which is `do_tasks`, here or in processes."""
    alone = replace(work, plan=replace(work.plan, held=True))
    begun_s = time.perf_counter()
    rest = missing
    if missing and num_workers and not at_once:
        yield from start(alone, missing[:1], num_workers=0)
        seconds, rest = time.perf_counter() - begun_s, missing[1:]
        if seconds * sum(map(len, rest)) < _WORTH_STARTING_S * len(missing[0]):
            num_workers = 0
    if num_workers and len(rest) > 1:
        yield from start(work, rest, num_workers=num_workers)
    else:
        yield from start(alone, rest, num_workers=0)


class _Behind:
    """Does one thing after the other on a thread of its own, one behind who asks for them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "join")
        self._last: Future[None] | None = None

    def do(self, call: Callable[[], None]) -> None:
        """Do this, once what was asked for before is done; what went wrong there is raised."""
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(call)

    def __enter__(self) -> _Behind:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._thread.shutdown()
        if self._last is not None and error is None:
            self._last.result()


class _Parts:
    """The parts of a split, joined in order as far as they are written."""

    def __init__(
        self, writer: Writer, folder: Path, plan: PackPlan, journal: Journal, skip_bad: bool
    ) -> None:
        self._writer, self._folder, self._plan, self._journal = writer, folder, plan, journal
        found = journal.load(plan.parts, folder)
        # A part of which records were left out is read again where they stop everything.
        self.found = {n: s for n, s in found.items() if skip_bad or not s.bad}
        self._joined = journal.joined
        self._first: int | None = None

    @property
    def missing(self) -> list[Part]:
        """Parts that are not written, in order."""
        return [part for part in self._plan.parts if part.number not in self.found]

    def add(self, summary: PartSummary) -> None:
        """Note a part that has been written, and join all that can be joined.

        What is held in memory is joined before it is noted: it cannot be joined another time.
        """
        self.found[summary.part.number] = summary
        if summary.written.held is None:
            self._journal.save(summary)
            self.join()
            return
        self.join()
        assert self._joined > summary.part.number, "parts that are held come in order"
        self.found[summary.part.number] = summary = replace(
            summary, written=replace(summary.written, held=None)
        )
        self._journal.save(summary)

    def join(self) -> None:
        """Join all that can be joined."""
        if self._first is None:
            if any(number not in self.found for number in range(self._joined)):
                return  # what was noted of one of them is damaged; it is being written again
            self._first = sum(len(self.found[number]) for number in range(self._joined))
        while self._joined in self.found:
            summary = replace(self.found[self._joined], first=self._first)
            self._writer.join_part(self._folder, self._plan, summary)
            self._journal.set_joined(self._joined + 1)
            self._take_away(summary)
            self._joined += 1
            self._first += len(summary)

    def end(self) -> list[PartSummary]:
        """All parts in order; of what they spooled nothing is left."""
        self.join()
        assert self._joined == len(self._plan.parts)
        for summary in self.found.values():
            self._take_away(summary)
        return numbered(self.found, len(self._plan.parts))

    def _take_away(self, summary: PartSummary) -> None:
        for name in summary.written.spooled:
            (self._folder / name).unlink(missing_ok=True)
