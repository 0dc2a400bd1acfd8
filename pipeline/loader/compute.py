"""A batch task to a batch: read, decode, transform, collate, and faults. Runs in any process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.protocols import StreamDataset
from datasets.sample import BadSample, Batch, Sample
from pipeline.loader.contract import BatchTask, Delivery, Fault
from pipeline.loader.faults import BadSampleError, OnError, Replacer

if TYPE_CHECKING:
    from datasets.protocols import Collate, Dataset, Sampler

_QUARANTINED = "quarantined: it killed the worker that computed it"


class BatchComputer:
    """Computes batches: a function of the task alone, whoever calls it.

    Pickles as its parts. Safe to call from several threads where its parts are.

    Args:
        dataset: Indexed data or a stream.
        sampler: Which record stands at a position; None for a stream.
        collate: Samples to a batch. A dataset with a `collate` of its own (a user's
            ``collate_fn``) uses that.
        seed: The run's seed.
        on_error: What happens to bad samples. A stream cannot read elsewhere: it skips where
            it should replace.
        imports: Modules of the user's components, to be loaded in every worker.
    """

    def __init__(
        self,
        dataset: Dataset | StreamDataset,
        *,
        sampler: Sampler | None,
        collate: Collate,
        seed: int,
        on_error: OnError,
        imports: tuple[str, ...] = (),
    ) -> None:
        self.dataset: Any = dataset  # of which kind, the task says
        self.imports = imports
        self._collate: Collate = getattr(dataset, "collate", None) or collate
        self._on_error = on_error
        self._replacer: Replacer | None = None
        if sampler is not None and not isinstance(dataset, StreamDataset):
            self._replacer = Replacer(dataset, sampler, seed)

    @property
    def global_random(self) -> bool:
        """Whether a part draws from global random states, and so needs a process of its own."""
        return any(getattr(part, "global_random", False) for part in (self.dataset, self._collate))

    def __call__(self, task: BatchTask) -> Delivery:
        """Compute one batch.

        Raises:
            BadSampleError: A sample is bad and may not be replaced or skipped.
            Exception: Whatever a component raised, with a note that names key and position.
        """
        rows = _Rows(task)
        for row, sample in enumerate(self._fetch(task)):
            self._place(rows, row, sample)
        if not rows.samples and not self._fill(rows):
            return Delivery(task.number, None, tuple(rows.faults), int(task.valid.sum()))
        batch = self._collated(task, rows)
        real, padded = getattr(self._collate, "overhead", _no_overhead)(batch)
        return Delivery(
            task.number,
            batch,
            tuple(rows.faults),
            positions=int(task.valid.sum()),
            samples=sum(rows.valid),
            real=real,
            padded=padded,
        )

    def _place(self, rows: _Rows, row: int, sample: Sample | BadSample) -> None:
        """Put one fetched sample into its batch, or do with a bad one what is asked for."""
        valid = bool(rows.task.valid[row])
        if not isinstance(sample, BadSample):
            rows.add(sample, valid)
        elif self._on_error == "raise":
            raise BadSampleError(
                f"{sample}; repair or remove it, or set loader.on_error (loader.eval_on_error "
                f"for evaluation) to skip"
            )
        elif self._on_error == "replace" and self._replacer is not None:
            other, index = self._replacer.replace(sample, rows.task.epoch)
            rows.add(other, valid)
            rows.report(sample, valid, f"replaced by index {index} ({other['key']})")
        else:
            rows.report(sample, valid, "skipped")

    def _fill(self, rows: _Rows) -> bool:
        """Give an empty batch one row marked invalid; False if it may be left out instead."""
        task, bad = rows.task, rows.last_bad
        assert bad is not None, "a batch without rows"
        if self._replacer is not None:
            rows.add(self._replacer.replace(bad, task.epoch)[0], False)
            return True
        if task.solo:
            return False
        raise BadSampleError(
            f"{bad}; with it all samples of this rank in batch {task.number} are bad, and a "
            f"stream cannot be read elsewhere: use a larger loader.batch_size or repair the data"
        )

    def _fetch(self, task: BatchTask) -> list[Sample | BadSample]:
        rows = np.arange(task.positions.size)
        held = np.isin(task.positions, np.asarray(task.quarantined, np.int64))
        if not held.any():
            return self._fetch_rows(task, rows)
        fetched = iter(self._fetch_rows(task, rows[~held]) if not held.all() else [])
        return [
            self._quarantined(task, row) if held[row] else next(fetched) for row in rows.tolist()
        ]

    def _quarantined(self, task: BatchTask, row: int) -> BadSample:
        index = int(task.indices[row]) if task.items is None else -1
        position = int(task.positions[row])
        return BadSample(index, self._key(task, row), position, _QUARANTINED, "loader")

    def _fetch_rows(self, task: BatchTask, rows: Any) -> list[Sample | BadSample]:
        try:
            return self._call(task, rows)
        except Exception as error:
            error.add_note(f"while computing {self._failing(task, rows)}")
            raise

    def _failing(self, task: BatchTask, rows: Any) -> str:
        """Which sample raises. They are pure, so computing them one by one finds it."""
        for row in rows.tolist():
            try:
                self._call(task, np.array([row]))
            except Exception:
                return (
                    f"{self._key(task, row)!r} at position {task.positions[row]} of epoch "
                    f"{task.epoch} (batch {task.number})"
                )
        return f"batch {task.number} of epoch {task.epoch}: each of its samples alone is fine"

    def _call(self, task: BatchTask, rows: Any) -> list[Sample | BadSample]:
        positions = task.positions[rows]
        if task.items is not None:
            items = [task.items[row] for row in rows]
            return self.dataset.fetch_items(items, positions, task.epoch)
        return self.dataset.fetch(task.indices[rows], positions, task.epoch)

    def _key(self, task: BatchTask, row: int) -> str:
        if task.items is not None:
            return f"item {task.positions[row]}"
        return self.dataset.index.keys(task.indices[row : row + 1])[0]

    def _collated(self, task: BatchTask, rows: _Rows) -> Batch:
        import torch

        try:
            batch = self._collate(rows.samples)
        except Exception as error:
            first, last = task.positions[0], task.positions[-1]
            error.add_note(
                f"while collating batch {task.number} of epoch {task.epoch}, positions "
                f"{first} to {last}, first key {rows.samples[0].get('key')!r}"
            )
            raise
        batch["valid"] = torch.tensor(rows.valid, dtype=torch.bool)
        return batch


@dataclass(slots=True)
class _Rows:
    """The rows of a batch while they come together."""

    task: BatchTask
    samples: list[Sample] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    last_bad: BadSample | None = None

    def add(self, sample: Sample, valid: bool) -> None:
        self.samples.append(sample)
        self.valid.append(valid)

    def report(self, bad: BadSample, valid: bool, action: str) -> None:
        self.last_bad = bad
        # Rows that only fill the batch repeat a position that is reported where it is valid.
        if valid:
            epoch = self.task.epoch
            self.faults.append(
                Fault(epoch, bad.position, bad.index, bad.key, bad.storage, bad.cause, action)
            )


def _no_overhead(batch: Batch) -> tuple[int, int]:
    return 0, 0
