"""The parts of a split: noted in a journal as they get written, and joined in order."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from penstock.core.contracts import Writer
from penstock.core.files import sync, write_whole
from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.sample import BadRecord
from penstock.datasets.writing import mark_file

_ARRAYS = ("rows", "checksums", "sizes")


class Parts:
    """The parts of a split that are written, and joined as far as they are.

    Args:
        journal: The folder of the notes, from which is gone on; made if it is not there.
        folder: The folder that becomes the split.
        writer: Joins them.
        plan: All parts.
        skip_bad: Records may be left out: else a part that lacks some is written again.

    Attributes:
        found: Parts that are written and whose files are what they were, by number.
    """

    def __init__(
        self, journal: Path, folder: Path, writer: Writer, plan: PackPlan, *, skip_bad: bool
    ) -> None:
        self._journal, self._folder, self._writer, self._plan = journal, folder, writer, plan
        journal.mkdir(parents=True, exist_ok=True)
        sync(journal.parent)
        try:
            self._joined = int((journal / "joined").read_text())
        except (FileNotFoundError, ValueError):
            self._joined = 0
        noted = filter(None, map(self._noted, plan.parts))
        self.found = {s.part.number: s for s in noted if skip_bad or not s.bad}
        self._first: int | None = None  # number in the result of the next record to be joined

    def add(self, summary: PartSummary) -> None:
        """Note a part that has been written, and join all that can be joined."""
        self.found[summary.part.number] = summary
        self._note(summary)
        self.join()

    def join(self) -> None:
        """Join all that can be joined."""
        if self._first is None:
            if any(number not in self.found for number in range(self._joined)):
                return  # what was noted of one of them is damaged; it is being written again
            self._first = sum(len(self.found[number]) for number in range(self._joined))
        while self._joined in self.found:
            summary = replace(self.found[self._joined], first=self._first)
            self._joined += 1
            self._first += len(summary)
            self._writer.join_part(self._folder, self._plan, summary)
            self._write("joined", b"%d" % self._joined)
            self._take_away(summary)

    def end(self) -> list[PartSummary]:
        """All parts in order; of what they spooled nothing is left."""
        self.join()
        assert self._joined == len(self._plan.parts)
        summaries: list[PartSummary] = []
        for part in self._plan.parts:
            first = sum(map(len, summaries[-1:]), summaries[-1].first if summaries else 0)
            summaries.append(replace(self.found[part.number], first=first))
            self._take_away(summaries[-1])
        return summaries

    def _take_away(self, summary: PartSummary) -> None:
        for name in summary.written.spooled:
            (self._folder / name).unlink(missing_ok=True)

    def _note(self, summary: PartSummary) -> None:
        part, written = summary.part, summary.written
        told = {
            "part": [part.number, part.start, part.stop],
            "files": written.files,
            "spooled": written.spooled,
            "marks": summary.marks,
            "bad": [[bad.index, bad.key, bad.cause] for bad in summary.bad],
            "done": summary.done,
        }
        arrays = {f"column {name}": values for name, values in written.columns.items()}
        arrays |= {name: getattr(summary, name) for name in _ARRAYS}
        if summary.labels is not None:
            arrays["labels"] = summary.labels
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, told=np.array(json.dumps(told)), **arrays)
        self._write(f"{part.number:06d}", file.getvalue())

    def _noted(self, part: Part) -> PartSummary | None:
        """Read what was noted of a part; None for nothing, or where it or a file is damaged."""
        try:
            with np.load(self._journal / f"{part.number:06d}") as file:  # which has checksums
                arrays = dict(file)
        except (OSError, EOFError, ValueError, BadZipFile, zlib.error):
            return None
        told = json.loads(str(arrays.pop("told")))
        if Part(*told["part"]) != part:
            return None
        marks = {name: (size, crc) for name, (size, crc) in told["marks"].items()}
        spooled = () if part.number < self._joined else told["spooled"]
        for path, mark in ((self._folder / n, marks[n]) for n in (*told["files"], *spooled)):
            if not path.is_file() or mark_file(path) != mark:
                return None
        columns = {name: a for name, a in arrays.items() if name.startswith("column ")}
        columns = {name.removeprefix("column "): a for name, a in columns.items()}
        return PartSummary(
            part=part,
            written=Written(columns, tuple(told["files"]), tuple(told["spooled"])),
            first=0,
            **{name: arrays[name] for name in _ARRAYS},
            labels=arrays.get("labels"),
            marks=marks,
            bad=tuple(BadRecord(*bad) for bad in told["bad"]),
            done=told["done"],
        )

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self._journal / name, content)
        sync(self._journal)
