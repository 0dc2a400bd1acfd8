"""The loader: batches in the order of the plan, and a state to resume from."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import closing
from dataclasses import replace
from functools import partial
from html import escape
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import count
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.contracts import (
    SamplerCapabilities,
    StreamDataset,
    capabilities_of,
)
from penstock.core.forks import leave_to_parent
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask, Delivery, Fault, mapped, to_tensor
from penstock.pipeline.loader.device.accelerator import PageLock
from penstock.pipeline.loader.executors import executor_named
from penstock.pipeline.loader.faults import BadSampleError, BadSampleLog
from penstock.pipeline.loader.memory import keep_freed_memory
from penstock.pipeline.loader.plan import BatchPlan, Quarantine, indexed_tasks
from penstock.pipeline.loader.rule import engine_by_rule
from penstock.pipeline.loader.scheduler import Scheduler
from penstock.pipeline.loader.state import (
    as_epoch,
    check_state,
    order_identity,
    place_of,
    plain,
    state_of,
)
from penstock.pipeline.loader.stats import LoaderStats
from penstock.pipeline.loader.stream_plan import StreamPlan, any_rank
from penstock.pipeline.loader.stream_readers import StreamReaders
from penstock.pipeline.samplers.sequential import SequentialSampler

if TYPE_CHECKING:
    from penstock.core.contracts import BatchTransform, Collate, Dataset, Sampler
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.device.accelerator import Accelerator
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)


class EpochRuns:
    """Deliveries of one epoch after another, without a gap where one ends and the next begins.

    With `across`, the tasks of the next epoch follow without a pause. So no worker idles while
    the last batches are awaited, and the next epoch's first batches are computed while this one
    is evaluated. They are dropped where the next iteration is of another epoch.

    Args:
        scheduler: Delivers the tasks.
        tasks: Makes the tasks of an epoch, called with ``epoch``, ``start`` and ``quarantine``.
        num_batches: Batches in an epoch; None: unknown before they end.
        across: Whether to continue over an epoch's end; not where `num_batches` is None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tasks: Callable[..., Iterator[BatchTask]],
        *,
        num_batches: int | None,
        across: bool,
    ) -> None:
        self._scheduler = scheduler
        self._tasks = tasks
        self._num_batches = num_batches
        self._across = across
        self._kept: tuple[int, Iterator[Delivery]] | None = None

    def deliveries(self, epoch: int, start: int, quarantine: Quarantine) -> Generator[Delivery]:
        """Deliveries of an epoch from batch `start` to its end; closed early, they are dropped."""
        kept, self._kept = self._kept, None
        if kept is not None and start == 0 and kept[0] == epoch:
            run = kept[1]
        else:
            _close(kept)
            ends = not self._across or self._num_batches is None or start >= self._num_batches
            epochs = [epoch] if ends else count(epoch)
            run = self._scheduler.run(_tasks_of(self._tasks, epochs, start, quarantine))
        whole = False
        try:
            while (delivery := next(run, None)) is not None:
                whole = self._across and delivery.number + 1 == self._num_batches
                yield delivery
                del delivery  # the consumer alone decides how long a batch lives
                if whole:
                    return
        finally:
            if whole:
                self._kept = epoch + 1, run
            else:
                _close((epoch, run))

    def drop(self) -> None:
        """Forget what was computed for an epoch to come."""
        kept, self._kept = self._kept, None
        _close(kept)


def _tasks_of(
    tasks: Callable[..., Iterator[BatchTask]],
    epochs: Iterable[int],
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Tasks of epochs in a row, of the first one from batch `start`.

    It holds nothing of the `EpochRuns` that hold it: that cycle would keep the threads of a
    forgotten loader until garbage is collected.
    """
    for epoch in epochs:
        yield from tasks(epoch=epoch, start=start, quarantine=quarantine)
        start = 0


def _close(kept: tuple[int, Iterator[Delivery]] | None) -> None:
    if kept is not None:
        kept[1].close()  # type: ignore[attr-defined]


class Loader:
    """Iterates over batches: the same ones, whatever computes them.

    Iterating goes through one epoch. After a whole epoch, that is when its last batch was handed
    over, the next iteration is the next epoch; after one that was broken off it is the same epoch
    again, from its beginning; after `load_state_dict` it is the rest of the epoch that was saved.
    Evaluation stays at epoch 0.

    In a forked process the next iteration starts workers of its own. An iteration that began in
    the parent raises RuntimeError there, and continues in the parent.

    Args:
        dataset: Indexed data, or a stream.
        sampler: Maps positions to records; None: all records in order, or a stream's own.
        collate: Samples to a batch.
        settings: Sizes, workers and faults.
        seed: The run's seed.
        split: ``train``, or ``val`` for evaluation: all records once, none replaced.
        rank: This process among those that share each batch.
        world_size: Number of these processes.
        identity: ``{"sampler": node, "pixels": {...}}``, plain values that decide the batches;
            a state is refused where they differ.
        bad_samples_path: The ``bad_samples.csv`` to append to, or None.
        imports: Modules of the user's components, to be loaded in every worker.
        group: Positions that no rank may cut apart, for a batch transform that needs it.
        steps: Steps for images and masks of every batch, by the workers; None: no steps.
        goes_on: Told before each batch of a stream that is dealt out to ranks whether this rank
            has records in it, says whether any rank has; None: torch.distributed is asked.

    Attributes:
        on_bad: Called with each bad sample of this rank.

    Raises:
        ValueError: The settings make no batches of this data; the message says what to do.
    """

    def __init__(
        self,
        dataset: Dataset | StreamDataset,
        *,
        sampler: Sampler | None,
        collate: Collate,
        settings: LoaderSettings,
        seed: int,
        split: Literal["train", "val", "test"] = "train",
        rank: int = 0,
        world_size: int = 1,
        identity: Mapping[str, Any] | None = None,
        bad_samples_path: Path | None = None,
        imports: tuple[str, ...] = (),
        group: int = 1,
        steps: BatchTransform | None = None,
        goes_on: Callable[[bool], bool] | None = None,
    ) -> None:
        keep_freed_memory()
        self._lock: PageLock | None = None
        self.dataset: Any = dataset
        self.settings = settings
        # Of a mix of data sets: other fields of that name are without classes.
        self.stats = LoaderStats(drawn=dict.fromkeys(classes_of(dataset, "source") or (), 0))
        self.on_bad: Callable[[Fault], None] = lambda fault: None
        self.batch_size = settings.batch_size_of(split)
        self._evaluates = split != "train"
        self._seed = seed
        self._identity = plain(identity or {})
        self._tail = settings.tail_of(split)
        ours = capabilities_of(sampler, SamplerCapabilities)
        self.plan: BatchPlan | None = None
        self._tasks: Callable[..., Iterator[BatchTask]]
        self._readers: StreamReaders | None = None
        self._goes_on: Callable[[bool], bool] | None = None
        self._stream: StreamPlan | None = None
        self._filler: tuple[int, Any] | None = None
        if isinstance(dataset, StreamDataset):
            sampler = None
            self._readers = StreamReaders(settings, imports)
            stream = self._stream = StreamPlan(
                dataset,
                batch_size=self.batch_size,
                world_size=world_size,
                rank=rank,
                tail=self._tail,
                open_readers=self._readers,
            )
            self._tasks = stream.tasks
            if stream.waits:
                self._goes_on = goes_on or any_rank
        else:
            if sampler is None:
                sampler = SequentialSampler(len(dataset))
                ours = capabilities_of(sampler, SamplerCapabilities)
            if dataset.draws_partners:
                self.dataset = dataset = dataset.drawing_from(sampler)
            self.plan = BatchPlan(
                num_positions=len(sampler),
                batch_size=self.batch_size,
                world_size=world_size,
                rank=rank,
                tail=self._tail,
                group=lcm(group, ours.group),
                cuts=ours.cuts,
            )
            self._tasks = partial(indexed_tasks, self.plan, sampler, len(dataset), ours.at)
        self._sampler = sampler
        self._compute = BatchComputer(
            dataset,
            sampler=sampler,
            collate=collate,
            seed=seed,
            on_error=settings.eval_on_error if self._evaluates else settings.on_error,
            imports=imports,
            steps=steps,
        )
        self._bad_samples = BadSampleLog(
            bad_samples_path, split=split, max_error_rate=settings.max_error_rate
        )
        self._make_scheduler()
        if self._why and not self._evaluates:
            _logger.info("loader: batches are computed by %s", self.engine_choice)
        self._epoch = 0
        self._next_batch = 0
        self._finished = False
        self._placed = False
        self._turn = 0
        self._inherited_turns = 0
        self._quarantine: set[Any] = set()
        self._run: Generator[Delivery] | None = None
        self._fingerprint: str | None = None
        _loaders.add(self)

    def _make_scheduler(self) -> None:
        """Make the scheduler of this process."""
        settings = self.settings
        self._pid = os.getpid()
        name, self._why = settings.engine, ""
        if name is None:
            name, self._why = engine_by_rule(self._compute, settings)
            settings = replace(settings, engine=name)
        elif name == "threads" and self._compute.global_random:
            name = "processes"
            self._why = "a component draws from global random states, which threads share"
        if not settings.workers:
            name = "inline"
        self._scheduler = Scheduler(executor_named(name), self._compute, settings)
        self.stats.workers = None if name == "inline" else self._scheduler.workers
        self._runs = EpochRuns(
            self._scheduler,
            self._tasks,
            num_batches=self._num_batches,
            across=settings.across_epochs and settings.persistent_workers and not self._evaluates,
        )

    def enter_fork(self) -> None:
        """Leave the iteration and the workers of a parent alone; called in its fork."""
        leave_to_parent(dict(vars(self)))
        self._lock = None
        self._run = None
        self._inherited_turns = self._turn
        self._turn += 1

    def __len__(self) -> int:
        """Batches in an epoch; TypeError for a stream, whose length is unknown."""
        if self.plan is None:
            raise TypeError("the length of a stream is unknown: iterate until it ends")
        return self.plan.num_batches

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or was last."""
        return self._epoch

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None without labels."""
        return self.classes_of("label")

    def classes_of(self, field: str) -> tuple[str, ...] | None:
        """Names of the classes whose ids a field holds (``label``, ``box_labels``, ``mask``).

        None for an unknown field, or classes without names.
        """
        return classes_of(self.dataset, field)

    @property
    def table(self) -> Any:
        """The decoder that knows a table's columns (see `TableDecoder`); None for other data."""
        return self._compute.can.dataset.table

    @property
    def engine_choice(self) -> str:
        """Say who computes the batches, and why where the rule chose."""
        choice = self._scheduler.choice
        return f"{choice} ({self._why})" if self._why else choice

    @property
    def is_ready(self) -> bool:
        """Whether the next batch is computed, so that asking for it does not wait."""
        return self._scheduler.is_ready

    def page_lock(self, accelerator: Accelerator) -> PageLock:
        """Write batches where an accelerator reads them, from the next ones on.

        The caller alone gives them to the device: memory is written again as soon as no array
        views it. `DeviceQueue` calls this; a loader without one page-locks nothing.
        """
        if self._lock is None or self._lock.device != accelerator.device:
            self._lock = PageLock(accelerator)
            if self.settings.pin_memory is not False:
                self._scheduler.page_lock(self._lock)
        return self._lock

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be `epoch`, from the batch of a loaded state of that epoch.

        An iteration that has handed out a batch continues unchanged.
        """
        epoch = as_epoch(epoch)
        if self._evaluates:
            return
        if not (self._placed and epoch == self._epoch):
            self._epoch, self._next_batch, self._placed = epoch, 0, True
        self._finished = False

    def __iter__(self) -> Iterator[Batch]:
        self._stop()
        # Some training programs count batches and never ask for the one after the last.
        whole = not self._placed and 0 < self._next_batch == self._num_batches
        if self._finished or whole:
            self._epoch += not self._evaluates
            self._next_batch = 0
        elif not self._placed:
            self._next_batch = 0
        self._finished = False
        return self._iterate(self._turn)

    def _iterate(self, turn: int) -> Iterator[Batch]:
        # The first `next` settles the epoch: until then `set_epoch` and another
        # `iter` find the place as it was set.
        self._check_turn(turn)
        if self._pid != os.getpid():
            self._make_scheduler()
        self._placed = False
        run = self._runs.deliveries(self._epoch, self._next_batch, self._quarantine)
        self._run = run
        self.stats.begin()
        try:
            while (delivery := next(run, None)) is not None:
                if self._goes_on is not None and not self._goes_on(delivery.positions > 0):
                    break
                for fault in delivery.faults:
                    self.on_bad(fault)
                self._bad_samples.add(delivery.faults, delivery.positions)
                if delivery.batch is None and self._stream is not None:
                    delivery = self._filled(delivery, self._stream)
                elif delivery.batch is None and delivery.faults and self._has_other_ranks:
                    raise BadSampleError(
                        f"{self.dataset}: batch {delivery.number} lacks a good sample on this rank "
                        f"and no other record could be read to fill it; repair the data"
                    )
                self.stats.add(delivery)
                # Counted before it is handed over: a batch that the consumer holds is consumed.
                if not self._placed:
                    self._next_batch = delivery.number + 1
                self._quarantine |= self._quarantined(delivery)
                if delivery.batch is not None:
                    yield mapped(delivery.batch, to_tensor)
                    self.stats.asked()
                    self._check_turn(turn)
                del delivery  # the consumer alone decides how long a batch lives
            self._finished = not self._placed
            self._bad_samples.end_epoch()
        finally:
            if self._turn == turn:
                self._stop()

    def _quarantined(self, delivery: Delivery) -> set[Any]:
        """Return the records of a batch that killed workers; of a stream, epochs and positions."""
        positions = delivery.quarantined
        if self._sampler is None:
            return {(self._epoch, position) for position in positions}
        records = (self._sampler.indices(self._epoch, p, p + 1) for p in positions)
        return {int(record[0]) for record in records}

    def _filled(self, delivery: Delivery, stream: StreamPlan) -> Delivery:
        """Fill a batch without good samples with one invalid row, the epoch's first good item.

        All ranks get the same number of batches. A single rank without any good item leaves the
        batch out.

        Raises:
            BadSampleError: All items of this rank are bad, and there are other ranks.
            ValueError: This rank lacks items, and other ranks have some.
        """
        if self._filler is None or self._filler[0] != self._epoch:
            self._filler = self._epoch, self._first_good(delivery.number, stream)
        item = self._filler[1]
        if item is None:
            return delivery
        return replace(delivery, batch=self._invalid_row(delivery.number, item))

    def _first_good(self, number: int, stream: StreamPlan) -> Any:
        """Find the first item of the epoch that makes a sample; see `_filled`."""
        empty = True
        with closing(stream.first_items(self._epoch, self._quarantine)) as items:
            for item in items:
                if self._invalid_row(number, item) is not None:
                    return item
                empty = False
        if stream.world_size == 1:
            return None
        if empty:
            raise ValueError(
                f"{self.dataset}: the readers of this rank lack records that other ranks have; "
                f"lower dataset.readers, or add records"
            )
        raise BadSampleError(
            f"{self.dataset}: all records of rank {stream.rank} are bad, and it needs a good one "
            f"for batch {number}; repair the data, the cause of each bad record is in the log"
        )

    def _invalid_row(self, number: int, item: Any) -> Batch | None:
        """Make a batch of one invalid row; None if the item is bad."""
        task = BatchTask(
            epoch=self._epoch,
            number=number,
            positions=np.array([number * self.batch_size], np.int64),
            valid=np.zeros(1, np.bool_),
            indices=np.empty(0, np.int64),
            items=[item],
        )
        return self._compute(task).batch

    def _check_turn(self, turn: int) -> None:
        if self._turn != turn and turn <= self._inherited_turns:
            raise RuntimeError(
                f"loader: this iteration began in process {self._pid}, and process {os.getpid()} "
                f"is a fork of it; iterate over the loader again in the fork"
            )
        if self._turn != turn:
            raise RuntimeError(
                "loader: this iteration ended when another one began, or when the loader was "
                "closed; one loader is iterated by one loop at a time"
            )

    @property
    def _has_other_ranks(self) -> bool:
        return self.plan is not None and self.plan.world_size > 1

    @property
    def _num_batches(self) -> int | None:
        return None if self.plan is None else self.plan.num_batches

    def _stop(self) -> None:
        """End the iteration at hand, if there is one."""
        self._turn += 1
        run, self._run = self._run, None
        # A run that another thread iterates ends there, when it finds that its turn is over.
        if run is not None and getgeneratorstate(run) != GEN_RUNNING:
            run.close()

    def state_dict(self) -> dict[str, Any]:
        """Tell the consumer's place in the epoch: small, JSON-able.

        It is the same on every rank except for the quarantine, which `pipeline.loader.state.united`
        joins for a checkpoint.
        """
        place = self._epoch, self._next_batch, self._finished, frozenset(self._quarantine)
        return {**state_of(place), **self._what()}

    def load_state_dict(self, state: Mapping[str, Any], anyway: bool = False) -> None:
        """Go on from a state.

        Args:
            state: What `state_dict` gave, on any rank of any number, with any workers.
            anyway: Take it even where seed, plan, pixels or data differ.

        Raises:
            ValueError: It is not a state, or of other batches; the message names the differences.
        """
        place = place_of(state)
        if not anyway:
            check_state(state, self._what())
        self._stop()
        if self._pid == os.getpid():
            self._runs.drop()
        self._epoch, self._next_batch, self._finished, quarantine = place
        self._quarantine = set(quarantine)
        self._placed = True

    def _what(self) -> dict[str, Any]:
        """Tell what decides the batches; ranks and workers are not part of it."""
        if self._fingerprint is None:
            self._fingerprint = self.dataset.fingerprint()
        plan = {"sampler": self._identity.get("sampler"), "batch_size": self.batch_size}
        plan |= {"tail": self._tail, **order_identity(self.plan, self._compute.can.sampler)}
        pixels = self._identity.get("pixels")
        return {"seed": self._seed, "plan": plan, "pixels": pixels, "data": self._fingerprint}

    def close(self) -> None:
        """End iteration and workers; a thread that iterates meanwhile gets a RuntimeError."""
        self._stop()
        if self._pid != os.getpid():
            return
        self._runs.drop()
        self._scheduler.close()
        if self._readers is not None:
            self._readers.close()

    def _repr_html_(self) -> str:
        try:
            batches = f"{len(self):,} batches"
        except TypeError:
            batches = "a stream of batches"
        names = ", ".join(self.class_names or ())
        rows = {
            "batches": f"{batches} of {self.batch_size}",
            "data": f"{len(self.dataset):,} samples" if isinstance(self.dataset, Sized) else "",
            "classes": names[:200] + "…" * (len(names) > 200),
            "computed by": self.engine_choice,
        }
        cells = (f"<tr><th>{k}</th><td>{escape(v)}</td></tr>" for k, v in rows.items() if v)
        return f"<table>{''.join(cells)}</table>"

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()


def _enter_fork() -> None:
    for loader in list(_loaders):
        loader.enter_fork()


os.register_at_fork(after_in_child=_enter_fork)


def classes_of(dataset: Dataset | StreamDataset, field: str) -> tuple[str, ...] | None:
    """Names of the classes whose ids a field holds; None where there are none."""
    if isinstance(dataset, StreamDataset):
        return dataset.class_names if field == "label" else None
    if field == "label":
        return dataset.index.class_names
    return dataset.index.field_classes.get(field)
