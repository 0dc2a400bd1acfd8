"""The loader: batches in the order of the plan, and a state to resume from."""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import count
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.contracts import AnyDataset, Sampler, StreamDataset
from penstock.core.processes import leave_to_parent
from penstock.pipeline.loader.arena import keep_freed_memory
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask, Delivery, Fault, mapped, to_tensor
from penstock.pipeline.loader.executors.processes import recipe_of
from penstock.pipeline.loader.faults import BadSampleError, BadSampleLog
from penstock.pipeline.loader.plan import BatchPlan, Quarantine, indexed_tasks
from penstock.pipeline.loader.scheduler import Scheduler
from penstock.pipeline.loader.state import as_epoch, check_state, place_of, state_of
from penstock.pipeline.loader.stats import LoaderStats
from penstock.pipeline.loader.streams import StreamPlan, StreamReaders, any_rank
from penstock.pipeline.samplers.random import SequentialSampler

if TYPE_CHECKING:
    from penstock.core.contracts import BatchTransform, Dataset
    from penstock.core.sample import Batch, Sample
    from penstock.pipeline.loader.device.accelerator import Accelerator, PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)


class Loader:
    """Iterate over batches: the same ones, whatever computes them.

    Iterating goes through one epoch. After the last batch of an epoch, the next iteration is the
    next epoch; after one that was cut short it is the same epoch again; after `load_state_dict` it
    is the rest of the saved epoch. Evaluation stays at epoch 0.

    In a forked process the next iteration starts workers of its own. An iteration of the parent
    raises RuntimeError there, and continues in the parent.

    Args:
        dataset: Indexed data, or a stream.
        sampler: Maps positions to records; None: all records in order, or a stream's own.
        collate: Samples to a batch; a `Collate` or a function.
        split: ``train``, or ``val`` for evaluation: all records once, none replaced.
        rank: This process among the `world_size` processes that share each batch.
        identity: ``{"sampler": node, "pixels": {...}}``, plain values that decide the batches;
            a state is refused where they differ.
        bad_samples_path: The ``bad_samples.csv`` to append to, or None.
        imports: Modules of the user's components, to be loaded in every worker.
        group: Positions that no rank may cut apart, for a batch transform that needs it.
        steps: Steps for images and masks of every batch, by the workers.
        goes_on: Called before each batch of a stream with several readers and ranks: whether this
            rank has records in it; return whether any rank has. None: use torch.distributed.

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
        collate: Callable[[list[Sample]], Batch],
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
        parts = {"dataset": (dataset, AnyDataset), "sampler": (sampler, Sampler | None)}
        for name, (made, base) in parts.items():
            if not isinstance(made, base):
                raise ValueError(
                    f"{name}: {type(made).__qualname__} does not extend the base class of a "
                    f"{name} in core/contracts.py"
                )
        if not 0 <= rank < world_size:
            raise ValueError(f"loader: rank {rank} of {world_size} given; ranks count from 0")
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
        self._world_size = world_size
        self._identity = json.loads(json.dumps(identity or {}))  # as a checkpoint gives it back
        self._tail = settings.tail_of(split)
        self.plan: BatchPlan | None = None
        self._tasks: Callable[..., Iterator[BatchTask]]
        self._readers: StreamReaders | None = None
        self._goes_on: Callable[[bool], bool] | None = None
        self._stream: StreamPlan | None = None
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
            if dataset.draws_partners:
                self.dataset = dataset = dataset.drawing_from(sampler)
            self.plan = BatchPlan(
                num_positions=len(sampler),
                batch_size=self.batch_size,
                world_size=world_size,
                rank=rank,
                tail=self._tail,
                group=lcm(group, sampler.group),
                cuts=None if sampler.cuts(0) is None else sampler.cuts,
            )
            self._tasks = partial(indexed_tasks, self.plan, sampler, len(dataset))
        self._num_batches = None if self.plan is None else self.plan.num_batches
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
        stays = settings.across_epochs and settings.persistent_workers
        self._crosses_epochs = stays and not self._evaluates and self.plan is not None
        self._make_scheduler()
        if self._why and not self._evaluates:
            _logger.info("loader: batches are computed by %s", self.engine_choice)
        self._epoch = self._next_batch = self._turn = 0
        self._finished = self._placed = False
        self._quarantine: set[Any] = set()
        self._fingerprint: str | None = None
        _loaders.add(self)

    def _make_scheduler(self) -> None:
        """Make the scheduler of this process."""
        settings = self.settings
        self._pid = os.getpid()
        self._run: Generator[Delivery] | None = None
        self._next_epoch: int | None = None  # the epoch that `_run` continues with
        name, self._why = settings.engine, ""
        if not settings.workers:
            name = "inline"
        elif name in (None, "threads") and self._compute.global_random:
            name, self._why = "processes", "a component draws from global random states"
        elif name is None:
            name, self._why = self._by_rule()
        self._scheduler = Scheduler(name, self._compute, settings)
        self.stats.workers = None if name == "inline" else self._scheduler.workers

    def _by_rule(self) -> tuple[str, str]:
        """Return the name of an executor and the reason."""
        if self._compute.way == "columns":
            return "threads", "each batch is made as columns"
        try:
            recipe_of(self._compute)
        except ValueError as error:
            return "threads", str(error).removeprefix("loader: ").partition(";")[0]
        return "processes", "each sample is made on its own"

    def enter_fork(self) -> None:
        """Leave the iteration and the workers of a parent alone; called in its fork."""
        leave_to_parent(dict(vars(self)))
        self._lock = None
        self._run = self._next_epoch = None
        self._turn += 1

    def __len__(self) -> int:
        """Batches in an epoch; TypeError for a stream, whose length is unknown."""
        if self._num_batches is None:
            raise TypeError("the length of a stream is unknown: iterate until it ends")
        return self._num_batches

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
        return self._compute.dataset.table

    @property
    def engine_choice(self) -> str:
        """Say who computes the batches, and why where the rule chose."""
        choice = self._scheduler.choice
        return f"{choice} ({self._why})" if self._why else choice

    @property
    def is_ready(self) -> bool:
        """Whether the next batch is computed, so that asking for it does not wait."""
        return self._scheduler.is_ready

    def start(self) -> None:
        """Start the workers before the first iteration, while the program builds other things."""
        self._scheduler.start()

    def page_lock(self, accelerator: Accelerator) -> PageLock:
        """Write batches where an accelerator reads them, from the next ones on.

        The caller alone gives them to the device: memory is written again as soon as no array
        views it. `DeviceQueue` calls this; a loader without one page-locks nothing.
        """
        from penstock.pipeline.loader.device.accelerator import PageLock

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
        epoch = self._epoch  # `set_epoch` may change it during the iteration
        run = self._run_from(epoch, self._next_batch)
        self.stats.begin()
        try:
            while (delivery := next(run, None)) is not None:
                is_last = delivery.number + 1 == self._num_batches
                self._next_epoch = epoch + 1 if is_last else None
                if self._goes_on is not None and not self._goes_on(delivery.positions > 0):
                    break
                for fault in delivery.faults:
                    self.on_bad(fault)
                self._bad_samples.add(delivery.faults, delivery.positions)
                self._quarantine |= self._quarantined(epoch, delivery)
                if delivery.batch is None and self._stream is not None:
                    row = self._stream.invalid_row(
                        self._scheduler.compute, epoch, delivery.number, self._quarantine
                    )
                    delivery = replace(delivery, batch=row)
                elif delivery.batch is None and delivery.faults and self._world_size > 1:
                    raise BadSampleError(
                        f"{self.dataset}: batch {delivery.number} lacks a good sample on this rank "
                        f"and no other record could be read to fill it; repair the data"
                    )
                self.stats.count_in(delivery)
                # Counted before it is handed over: a batch that the consumer holds is consumed.
                if not self._placed:
                    self._next_batch = delivery.number + 1
                if delivery.batch is not None:
                    yield mapped(delivery.batch, to_tensor)
                    self.stats.asked()
                    self._check_turn(turn)
                del delivery  # the consumer alone decides how long a batch lives
                if is_last and self._crosses_epochs:
                    break
            self._finished = not self._placed
            self._bad_samples.end_epoch()
        finally:
            if self._turn == turn:
                self._stop()

    def _run_from(self, epoch: int, start: int) -> Generator[Delivery]:
        """Return the run at a batch, with the next epoch's tasks at its end.

        So no worker idles while the last batches are awaited, and the next epoch's first batches
        are computed while this one is evaluated.
        """
        if self._run is None or (self._next_epoch, 0) != (epoch, start):
            self._drop_run()
            goes_on = self._crosses_epochs and start < len(self)
            epochs = count(epoch) if goes_on else [epoch]
            tasks = _tasks_of(self._tasks, epochs, start, self._quarantine)
            self._run = self._scheduler.run(tasks)
        self._next_epoch = None
        return self._run

    def _quarantined(self, epoch: int, delivery: Delivery) -> set[Any]:
        """Return the records of a batch that killed workers; of a stream, epochs and positions."""
        positions = delivery.quarantined
        if self._sampler is None:
            return {(epoch, position) for position in positions}
        return {*self._sampler.at(epoch, np.array(positions, np.int64)).tolist()}

    def _check_turn(self, turn: int) -> None:
        if self._turn != turn:
            raise RuntimeError(
                f"loader: this iteration of process {self._pid} ended when another one began, when "
                f"the loader was closed, or at a fork, here process {os.getpid()}; one loader is "
                f"iterated by one loop at a time"
            )

    def _stop(self) -> None:
        """End the iteration at hand, if there is one; a run at the end of its epoch stays."""
        self._turn += 1
        if self._next_epoch is None or not self._crosses_epochs:
            self._drop_run()

    def _drop_run(self) -> None:
        """Forget the run, with all batches that it has computed ahead."""
        run, self._run, self._next_epoch = self._run, None, None
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
        """Continue from a state of any rank, any number of ranks and any workers.

        Raise ValueError if it is not a state, or one of other batches, unless `anyway`.
        """
        place = place_of(state)
        if not anyway:
            check_state(state, self._what())
        self._stop()
        self._drop_run()
        self._epoch, self._next_batch, self._finished, quarantine = place
        self._quarantine = set(quarantine)
        self._placed = True

    def _what(self) -> dict[str, Any]:
        """Tell what decides the batches; ranks and workers are not part of it."""
        if self._fingerprint is None:
            self._fingerprint = self.dataset.fingerprint()
        plan = {"sampler": self._identity.get("sampler"), "batch_size": self.batch_size}
        plan["tail"] = self._tail
        if self.plan is not None:
            plan |= {"num_positions": self.plan.num_positions, "group": self.plan.group}
        if self._sampler is not None and (weights := self._sampler.fingerprint()):
            plan["weights"] = weights
        pixels = self._identity.get("pixels")
        return {"seed": self._seed, "plan": plan, "pixels": pixels, "data": self._fingerprint}

    def close(self) -> None:
        """End iteration and workers; a thread that iterates meanwhile gets a RuntimeError."""
        self._stop()
        self._drop_run()
        if self._pid != os.getpid():
            return
        self._scheduler.close()
        if self._readers is not None:
            self._readers.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tasks_of(
    tasks: Callable[..., Iterator[BatchTask]],
    epochs: Iterable[int],
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Yield the tasks of epochs in a row, of the first one from batch `start`.

    It holds nothing of the loader: that cycle would keep the threads of a forgotten loader until
    garbage is collected.
    """
    for epoch in epochs:
        yield from tasks(epoch=epoch, start=start, quarantine=quarantine)
        start = 0


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
