"""The parts of a split, noted in a journal as they get written."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from penstock.core.files import sync, write_whole
from penstock.core.parts import PackPlan, Part, PartSummary
from penstock.core.sample import BadRecord
from penstock.datasets.writing import mark_file

_ARRAYS = ("rows", "checksums", "sizes")


class Parts:
    """The parts of a split that are written.

    Args:
        journal: The folder of the notes, from which is gone on; made if it is not there.
        folder: The folder that becomes the split.
        plan: All parts.
        skip_bad: Records may be left out: else a part that lacks some is written again.

    Attributes:
        found: Parts that are written and whose files are what they were, by number.
    """

    def __init__(self, journal: Path, folder: Path, plan: PackPlan, *, skip_bad: bool) -> None:
        self._journal, self._folder, self._plan = journal, folder, plan
        journal.mkdir(parents=True, exist_ok=True)
        sync(journal.parent)
        noted = filter(None, map(self._noted, plan.parts))
        self.found = {s.part.number: s for s in noted if skip_bad or not s.bad}

    def add(self, summary: PartSummary) -> None:
        """Note a part that has been written."""
        self.found[summary.part.number] = summary
        self._note(summary)

    def end(self) -> list[PartSummary]:
        """Return all parts in order."""
        return [self.found[part.number] for part in self._plan.parts]

    def _note(self, summary: PartSummary) -> None:
        part = summary.part
        told = {
            "part": [part.number, part.start, part.stop],
            "marks": summary.marks,
            "bad": [[bad.index, bad.key, bad.cause] for bad in summary.bad],
        }
        arrays = {name: getattr(summary, name) for name in _ARRAYS}
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
        for path, mark in ((self._folder / name, mark) for name, mark in marks.items()):
            if not path.is_file() or mark_file(path) != mark:
                return None
        return PartSummary(
            part=part,
            **{name: arrays[name] for name in _ARRAYS},
            labels=arrays.get("labels"),
            marks=marks,
            bad=tuple(BadRecord(*bad) for bad in told["bad"]),
        )

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self._journal / name, content)
        sync(self._journal)
