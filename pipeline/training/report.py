"""Tell the user how training goes, before it, in it and after it, and where its time went."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import StreamDataset
from penstock.core.sample import Record
from penstock.pipeline.config.errors import listing
from penstock.pipeline.learning.parameters import describe_groups
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.stats import LoaderTimes, cut_text, padding_text, sources_text
from penstock.pipeline.mixes import sources_of
from penstock.pipeline.training.checkpoint import RunState
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.output import print_line
from penstock.pipeline.training.parts import Parts, num_batches_of
from penstock.transforms.cpu.stack import ordered_steps

_log = logging.getLogger(__name__)
_LINE_EVERY_S = 10.0
_FIGURES_EVERY_S = 0.5
_FIRST = 16  # records that are looked at
_WIDE = 80  # columns that the whole bar fits in


def report_start(parts: Parts, world: World, run_dir: str, config: Mapping[str, Any]) -> None:
    """Log the data, the model and the device of a run that begins, and its name and tags."""
    run = config.get("run") or {}
    called = [str(name) for name in (run.get("name"), *(run.get("tags") or ())) if name]
    model_size = sum(parameter.numel() for parameter in parts.model.parameters())
    batch_size = parts.train.loader.batch_size
    lines = {
        "data": _data(parts),
        "table": _table(parts.train.loader.table),
        "cut": _cuts(parts, config),
        "audio": _resampled(parts.train.loader.dataset, config),
        "batch": _batch(batch_size, world.size),
        "model": f"{type(parts.model).__name__}, {model_size:,} parameters",
        "rates": describe_groups(parts.optimizer),
        "on": _device(world),
        "run": " ".join([run_dir, *([f"({', '.join(called)})"] if called else [])]),
    }
    for name, text in lines.items():
        if text:
            _log.info("%-5s %s", name, text)


def _data(parts: Parts) -> str:
    train, val = parts.train.loader, parts.val.loader if parts.val is not None else None
    classes = parts.class_names
    texts = [f"train {_size(train)}"]
    texts.append(f"val {_size(val)}" if val is not None else "no validation data")
    if classes:
        names = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        texts.append(f"{len(classes)} classes ({names})")
    return ", ".join(texts)


def _cuts(parts: Parts, config: Mapping[str, Any]) -> str:
    """Describe how many tokens of the records are cut, by split."""
    texts = [_cuts_of(config, "train", parts.train.loader.dataset)]
    if parts.val is not None:
        texts.append(_cuts_of(config, "val", parts.val.loader.dataset))
    return "; ".join(filter(None, texts))


def _resampled(dataset: Any, config: Mapping[str, Any]) -> str:
    """Describe the sample rates of audio files that are resampled, from the first records."""
    from penstock.datasets.map_dataset import MapDataset

    node = config["dataset"].get("decode") or {}
    if node.get("_target_") != "decode/audio" or not isinstance(dataset, MapDataset):
        return ""
    from penstock.transforms.decode.audio import AudioDecoder

    decode = AudioDecoder(sample_rate=node["sample_rate"])
    rates = set()
    for record in dataset.storage.read(np.arange(min(len(dataset), _FIRST))):
        with suppress(ValueError):  # training reports the bad record
            if isinstance(record, Record):
                rates.add(decode.defer(record)["audio"].rate)
    others = ", ".join(f"{rate:,}" for rate in sorted(rates - {decode.sample_rate}))
    return others and f"files of {others} Hz are resampled to {decode.sample_rate:,} Hz"


def _cuts_of(config: Mapping[str, Any], split: str, dataset: Any) -> str:
    """Describe what ``token_crop`` cuts from the records of a split.

    Args:
        config: A checked config.
        split: ``train``, ``val`` or ``test``.
        dataset: The samples of the split.

    Returns:
        The number of texts and tokens that an epoch over all records loses. An empty text if
        there are none, or where lengths are not known in advance: the index lacks a
        column ``length``, or another step comes before the crop.
    """
    augment = config.get("augment") or {}
    steps = augment.get("train" if split == "train" else "eval") or {}
    first = next(iter(ordered_steps(steps).values()), None)
    if first is None or first["_target_"] != "transform/token_crop":
        return ""
    most = first["max_length"]
    texts = cut_texts = tokens = cut_tokens = 0
    for lengths in _lengths(config, dataset):
        excess = np.maximum(lengths.astype(np.int64) - most, 0)
        texts, tokens = texts + lengths.size, tokens + int(lengths.sum())
        cut_texts += int(np.count_nonzero(excess))
        cut_tokens += int(excess.sum())
    if not cut_tokens:
        return ""
    return (
        f"{split}: {cut_texts:,} of {texts:,} texts are longer than {most:,} tokens and lose "
        f"{cut_tokens:,} of {tokens:,} tokens ({cut_tokens / tokens:.1%})"
    )


def _lengths(config: Mapping[str, Any], dataset: Any) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the lengths of the records, of each source of a mix."""
    if sources := sources_of(config):
        for name, part in sources.items():
            yield from _lengths(part, dataset.sources[name])
        return
    if isinstance(dataset, StreamDataset) or "length" not in dataset.index.columns:
        return
    lengths = np.asarray(dataset.index.column("length"))
    if lengths.dtype.kind in "iu":
        yield lengths


def _size(loader: Any) -> str:
    count = num_batches_of(loader)
    if count is None:
        return "a stream"
    batches = "1 batch" if count == 1 else f"{count:,} batches"
    dataset = loader.dataset
    if not isinstance(dataset, Sized):
        return batches
    sources = len(loader.stats.drawn)
    of_sources = f" of {sources} sources" if sources else ""
    samples = "1 sample" if len(dataset) == 1 else f"{len(dataset):,} samples"
    return f"{samples}{of_sources} in {batches}"


def _table(table: Any) -> str:
    """Say which columns are features, how each is read, and which are left out."""
    if table is None:
        return ""
    found = table.statistics
    texts = {
        "numbers": [column.name for column in found.numeric],
        "categories": [f"{each.name} ({len(each.values)})" for each in found.categorical],
        "left out": [f"{name!r} ({why})" for name, why in found.left_out],
    }
    said = "; ".join(f"{what}: {listing(names)}" for what, names in texts.items() if names)
    remedy = "; dataset.decode.numeric and categorical name columns that are features all the same"
    return said + (remedy if found.left_out else "")


def _batch(size: int, ranks: int) -> str:
    if ranks == 1:
        return f"{size}"
    low, high = size // ranks, -(-size // ranks)
    return f"{size} = {ranks} ranks x {low}" + (f" to {high}" if high > low else "")


def _device(world: World) -> str:

    if world.device.type == "cuda":
        return f"{world.device} ({torch.cuda.get_device_name(world.device)})"
    threads = torch.get_num_threads()
    return f"{world.device}, {threads} thread{'s' if threads > 1 else ''}"


def report_end(
    results: Mapping[str, Any], times: Mapping[str, Mapping[str, float]], *, interrupted: bool
) -> None:
    """Say what came out, where the time went, and where it lies.

    Args:
        results: What training returns.
        times: `Meter.summary` of ``train`` and of ``val``.
        interrupted: Whether the run is to be gone on with.
    """
    if interrupted:
        _log.info(
            "stopped at step %d; go on with trainer.resume=%s", results["step"], results["run_dir"]
        )
    last, best = _told(results, "val/"), _told(results, "best/")
    texts, tokens = results["cut_texts"], results["cut_tokens"]
    is_last = results.get("best_epoch") == results["epoch"]
    lines = {
        "result": f"{last}, the best epoch" if last and is_last else last or "not validated",
        **({"best": f"{best}, of epoch {results['best_epoch']}"} if best and not is_last else {}),
        **_speeds(times),
        "bad": f"{results['bad_samples']} bad samples",
        **({"cut": f"{cut_text(texts, tokens)}, summed over epochs"} if tokens else {}),
        "outputs": str(results["run_dir"]),
    }
    for name, text in lines.items():
        _log.info("%-10s %s", name, text)


def _told(results: Mapping[str, Any], start: str) -> str:
    figures = {
        name.removeprefix(start): value for name, value in results.items() if name.startswith(start)
    }
    return ", ".join(
        f"{name} {value:.2%}" if name.endswith("accuracy") else f"{name} {value:.4g}"
        for name, value in figures.items()
    )


def _speeds(times: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Lines on where the time went; without steps, that there were none."""
    lines: dict[str, str] = {}
    for split, name, of in (("train", "speed", ""), ("val", "val", "val ")):
        figures = times[split]
        if not figures:
            continue
        lines[name] = (
            f"{figures['samples_per_s']:,.0f} samples/s, {figures['data_wait']:.0%} of the time "
            f"waiting for data"
        )
        if figures["copy"]:
            lines[name] += f", {figures['copy']:.0%} with copies to the device under way"
        stages = {key[:-3]: value for key, value in figures.items() if key.endswith("_us")}
        if stages:
            total = max(sum(stages.values()), 1e-9)
            parts = [f"{k} {v:,.0f} us ({v / total:.0%})" for k, v in stages.items()]
            lines[f"{of}loader"] = f"a sample in its threads: {', '.join(parts)}"
        drawn = {k.removeprefix("drawn_"): v for k, v in figures.items() if k.startswith("drawn_")}
        if drawn and split == "train":
            lines["drawn"] = sources_text(drawn)
        if "padding" in figures:
            lines[f"{of}padding"] = padding_text(figures["padding"])
        if "cache_hits" in figures:
            lines[f"{of}cache"] = f"had {figures['cache_hits']:.0%} of the records"
    return lines or {"speed": "no step was made"}


class Progress:
    """Is told of every step, and shows none of them."""

    def step(
        self, state: RunState, num_batches: int | None, figures: dict[str, float], limit: str
    ) -> None:
        """Show a step.

        Args:
            state: Where the run stands.
            num_batches: Batches of the epoch, None if unknown.
            figures: ``samples_per_s``, ``data_wait`` (a share), and ``loss`` once there is one.
            limit: What training goes no faster than, or "".
        """

    def validating(self, state: RunState, done: int, num_batches: int | None) -> None:
        """Show how far a validation is."""

    def close(self) -> None:
        """Leave the screen as it was."""


def make_progress(
    kind: Literal["auto", "bar", "lines", "off"],
    max_epochs: int | None,
    max_steps: int | None = None,
    *,
    is_main: bool,
) -> Progress:
    """The kind of progress that fits where standard output goes."""
    if not is_main or kind == "off":
        return Progress()
    if kind == "bar" or (kind == "auto" and sys.stdout.isatty()):
        return Bar(max_epochs, max_steps)
    return Lines(max_epochs)


class Lines(Progress):
    """A plain line every ten seconds: for pipes, log files and notebooks."""

    def __init__(self, max_epochs: int | None) -> None:
        self._max_epochs = max_epochs
        self._next_s = time.monotonic() + _LINE_EVERY_S

    def step(
        self, state: RunState, num_batches: int | None, figures: dict[str, float], limit: str
    ) -> None:
        """Print a line, if the last one is ten seconds old."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _LINE_EVERY_S
        batch = f"batch {state.batch}" + (f"/{num_batches}" if num_batches else "")
        said = f"  limit: {limit}" if limit else ""
        print_line(f"{epoch_of(state, self._max_epochs)}  {batch}  {_speed(figures)}{said}")


class Bar(Progress):
    """A progress bar of the epoch, with loss, speed and waiting, and the time left for the run.

    Below it stands what limits training now. On a narrow terminal: epoch, batch and loss.
    """

    def __init__(self, max_epochs: int | None, max_steps: int | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._max_epochs, self._max_steps = max_epochs, max_steps
        self._began: tuple[float, float] | None = None  # the share of the run, and when
        console = Console(highlight=False)
        self._narrow = console.width < _WIDE
        between = (BarColumn(bar_width=8), MofNCompleteColumn())
        bar = self

        class WithHint(RichProgress):
            def get_renderables(self) -> Iterator[Any]:
                yield from super().get_renderables()
                if bar._hint:
                    yield bar._hint

        self._hint = ""
        self._bar: Any = WithHint(
            TextColumn("{task.description}"),
            *(between[1:2] if self._narrow else between),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, figures="")
        self._next_s = 0.0
        self._bar.start()

    def step(
        self, state: RunState, num_batches: int | None, figures: dict[str, float], limit: str
    ) -> None:
        """Move the bar."""
        changes: dict[str, Any] = {"completed": state.batch, "total": num_batches}
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _FIGURES_EVERY_S
            changes["figures"] = _loss(figures)
            if not self._narrow:
                changes["figures"] = f"{_speed(figures, 'wait')}  {self._left(state, num_batches)}"
                helps = "; penstock bench tells what helps"
                self._hint = f"limit: {limit}{helps}" if limit else ""
            changes["description"] = epoch_of(state, self._max_epochs)
        self._bar.update(self._task, **changes)

    def validating(self, state: RunState, done: int, num_batches: int | None) -> None:
        """Move the bar, which is the validation's until the next step."""
        what, self._next_s = epoch_of(state, self._max_epochs), 0.0
        self._bar.update(
            self._task, completed=done, total=num_batches, description=what, figures="validation"
        )

    def _left(self, state: RunState, num_batches: int | None) -> str:
        """Time left for the run, by the share of it that is done; nothing if that is not known."""
        shares = [state.step / self._max_steps] if self._max_steps else []
        if self._max_epochs and num_batches:
            shares.append((state.epoch + state.batch / num_batches) / self._max_epochs)
        if not shares:
            return ""
        share, now = max(shares), time.monotonic()
        self._began = self._began or (share, now)
        done, seconds = share - self._began[0], now - self._began[1]
        return f"{duration(seconds * (1 - share) / done)} left" if done > 0 else ""

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def duration(seconds: float) -> str:
    """A time to read: ``12 s``, ``3:25 min``, ``2:03 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    high, low = divmod(round(seconds) if seconds < 6000 else round(seconds / 60), 60)
    return f"{high}:{low:02} {'min' if seconds < 6000 else 'h'}"


def epoch_of(state: RunState, max_epochs: int | None) -> str:
    """Name the epoch that a run is in."""
    return f"epoch {state.epoch + 1}" + (f"/{max_epochs}" if max_epochs else "")


def _loss(figures: dict[str, float]) -> str:
    return f"loss {figures['loss']:.4g}  " if "loss" in figures else ""


def _speed(figures: dict[str, float], waiting: str = "waiting for data") -> str:
    speed = f"{figures['samples_per_s']:,.0f} samples/s"
    return f"{_loss(figures)}{speed}  {waiting} {figures['data_wait']:.0%}"


class Meter:
    """Counts samples and seconds of one use of a loader, and what lies between is left out.

    Args:
        batches: Whose waiting and copying is counted.
    """

    def __init__(self, batches: DeviceQueue) -> None:
        self.batches = batches
        # Samples; and seconds: all, those that waited for data, those of copies.
        self._total, self._lap = np.zeros(4), np.zeros(4)
        self._since = self._now()
        self._lap_times: LoaderTimes | None = None

    @property
    def samples(self) -> int:
        """Samples from the beginning."""
        return int(self._total[0])

    def start(self) -> None:
        """Time runs from here."""
        self._since = self._now()

    def step(self, samples: int) -> None:
        """A step over so many samples is done."""
        now = self._now()
        passed = now - self._since
        passed[0] = samples
        self._total += passed
        self._lap += passed
        self._since = now

    def lap(self) -> dict[str, float]:
        """Speed, waiting, microseconds a sample of each stage and use of workers since the last."""
        figures = _figures(self._lap)
        stats = self.batches.loader.stats
        times = stats.times
        passed = times if self._lap_times is None else times - self._lap_times
        figures |= _stages(passed)
        samples, seconds, _, copy_s = self._lap.tolist()
        figures["copy_us"] = copy_s / max(samples, 1) * 1e6
        if stats.workers is not None and (workers := stats.workers().workers):
            figures["worker_use"] = min(1.0, passed.total / max(seconds * workers, 1e-9))
        self._lap, self._lap_times = np.zeros(4), times
        return figures

    def counts(self) -> dict[str, float]:
        """How the loader of this rank stands: its faults, its workers, and what came from servers.

        Returns:
            ``bad_samples`` so far; ``ready``, batches that wait for the consumer, and ``restarts``
            of workers so far, where the engine tells; ``fetched_mb`` so far, of data behind URLs;
            ``pinned_mb``, page-locked memory that batches are copied from.
        """
        stats = self.batches.loader.stats
        figures: dict[str, float] = {"bad_samples": stats.bad_samples}
        if stats.workers is not None:
            _, figures["ready"], figures["restarts"] = stats.workers()
        if stats.times.requests:
            figures["fetched_mb"] = stats.times.fetched_bytes / 1e6
        if pinned_bytes := self.batches.pinned_bytes:
            figures["pinned_mb"] = pinned_bytes / 1e6
        return figures

    def total(self) -> dict[str, float]:
        """Speed and waiting from the beginning."""
        return _figures(self._total)

    def summary(self) -> dict[str, float]:
        """Sum up the time from the beginning; empty if no step was made.

        Returns:
            ``seconds``, ``samples_per_s``; ``data_wait`` and ``compute``, shares of the time that
            make up 1; ``copy``, the share in which the device copied, beside these;
            ``read_us``, ``decode_us``, ``transform_us`` and ``collate_us``, microseconds a sample
            in the loader's threads, where it times them; ``cache_hits``, the share of records
            that a cache had, where there is one; ``padding``, the share of ragged fields that is
            padding, where there are any; ``drawn_<name>``, a source's share of the samples of a
            mix.
        """
        samples, seconds, _, copy_s = self._total.tolist()
        if not samples:
            return {}
        figures = self.total()
        stats = self.batches.loader.stats
        return {
            "seconds": seconds,
            **figures,
            "copy": copy_s / max(seconds, 1e-9),
            "compute": 1 - figures["data_wait"],
            **_stages(stats.times),
            **({"padding": stats.padding_overhead} if stats.padded else {}),
            **{f"drawn_{name}": share for name, share in stats.shares.items()},
        }

    def _now(self) -> np.ndarray:
        return np.array([0, time.perf_counter(), self.batches.wait_s, self.batches.copy_s])


def _figures(count: np.ndarray) -> dict[str, float]:
    samples, seconds, wait_s, _ = count.tolist()
    seconds = max(seconds, 1e-9)
    return {"samples_per_s": samples / seconds, "data_wait": wait_s / seconds}


def _stages(times: LoaderTimes) -> dict[str, float]:
    """Microseconds a sample of each stage, and the share of records that a cache had."""
    figures = {f"{name}_us": value for name, value in times.stages_us.items()}
    return figures if times.hit_rate is None else {**figures, "cache_hits": times.hit_rate}
