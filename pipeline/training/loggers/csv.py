"""Write figures as CSV files: one that is the same for every run, one for timings."""

from __future__ import annotations

import csv
import io
import logging
import os
from pathlib import Path
from typing import Any

from penstock.core.contracts import Logger
from penstock.core.files import whole_file
from penstock.core.registry import register

_log = logging.getLogger(__name__)


@register("logger", "csv")
class CsvLogger(Logger):
    """Figures as CSV files: ``metrics.csv``, and ``timings.csv`` for what a clock measured.

    Equal runs give equal bytes in ``metrics.csv``, also when they were killed and resumed.
    Values whose names begin with ``time/`` go to the timings.

    Args:
        run_dir: The run's folder.
    """

    def __init__(self, *, run_dir: Path) -> None:
        self._metrics = _Table(Path(run_dir) / "metrics.csv")
        self._timings = _Table(Path(run_dir) / "timings.csv")

    def log(self, step: int, values: dict[str, float]) -> None:
        """Append a row to each file that is concerned."""
        timed = {name: value for name, value in values.items() if name.startswith("time/")}
        plain = {name: value for name, value in values.items() if name not in timed}
        if plain:
            self._metrics.append({"step": step, **plain})
        if timed:
            epoch = {"epoch": values["epoch"]} if "epoch" in values else {}
            self._timings.append({"step": step, **epoch, **timed})

    def state_dict(self) -> dict[str, Any]:
        """Columns and number of rows, which are on the disk when this returns."""
        self._metrics.sync()
        return {"version": 1, "columns": list(self._metrics.columns), "rows": self._metrics.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut the metrics back to the checkpoint; timings are facts, and stay."""
        self._metrics.reopen(list(state["columns"]), int(state["rows"]))
        self._timings.reopen(None, None)

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._timings.close()


class _Table:
    """A CSV file that gains columns when rows bring new ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.TextIOWrapper | None = None
        self.columns: list[str] = []
        self.rows = 0

    def append(self, row: dict[str, Any]) -> None:
        missing = [name for name in row if name not in self.columns]
        if missing or self._file is None:
            kept = self._read()[: self.rows]
            self.columns += missing
            self._rewrite(kept)
        assert self._file is not None
        self._write(row)
        self._file.flush()
        self.rows += 1

    def reopen(self, columns: list[str] | None, rows: int | None) -> None:
        """Go on with what is there: `rows` rows of `columns`, or all of it."""
        known = self._read()
        if columns is None or rows is None:
            columns, rows = (list(known[0]), len(known)) if known else ([], 0)
        if len(known) < rows:
            _log.warning("%s has %d rows, the checkpoint %d", self._path, len(known), rows)
        self.columns, self.rows = columns, min(rows, len(known))
        self._rewrite(known[: self.rows])

    def sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> list[dict[str, str]]:
        if (not self.rows and self._file is not None) or not self._path.exists():
            return []
        with self._path.open(newline="", encoding="utf-8") as file:
            return [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(file)]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """The file anew with the present columns; whole or not at all."""
        self.close()
        if not self.columns:
            self._path.unlink(missing_ok=True)
            return
        with (
            whole_file(self._path, alone=True) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, self.columns, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        self._file = self._path.open("a", newline="", encoding="utf-8")

    def _write(self, row: dict[str, Any]) -> None:
        assert self._file is not None
        # repr of a float is its shortest exact form: equal values give equal text.
        texts = {
            name: repr(float(v)) if isinstance(v, float) else str(v) for name, v in row.items()
        }
        csv.DictWriter(self._file, self.columns, lineterminator="\n").writerow(texts)
