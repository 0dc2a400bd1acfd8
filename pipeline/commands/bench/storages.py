"""Compare the forms that records can be kept in, and print them as a table."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Decoder, Storage, abilities_of
from penstock.core.files import own_folder
from penstock.core.record_codec import record_checksum
from penstock.core.registry import components, find, option_node
from penstock.core.sample import PendingImage
from penstock.core.user_errors import DiskError, is_explained
from penstock.datasets.records.views import Subset
from penstock.datasets.writing import Recode, write_storage
from penstock.pipeline.build import build_settings, open_storage, storage_opener
from penstock.pipeline.commands.bench.decoding import some_records
from penstock.pipeline.commands.bench.report import (
    clear,
    doing,
    heading,
    say,
    width,
    write,
    write_table,
)
from penstock.pipeline.commands.bench.storage_process import (
    BATCH,
    Measured,
    MeasureError,
    measure,
    open_some,
)
from penstock.pipeline.commands.pack import refuse_nesting
from penstock.pipeline.config.errors import ConfigError, Problem, nearest
from penstock.pipeline.instantiate import build
from penstock.pipeline.packing.report import folder_bytes
from penstock.pipeline.packing.run import terminated_as_interrupt

if TYPE_CHECKING:
    from penstock.pipeline.commands.bench import BenchSettings
    from penstock.pipeline.commands.bench.points import Points


_ALIKE = 0.9
_SMALL_SHARE = 0.1
_EXCHANGE = ("parquet", "webdataset")
_PACK_S, _START_S, _DECODE_S = 2.0, 0.6, 0.3
_LOOKED_AT = 64
SAMPLE_BYTES = 256 * 10**6
_RECORDS = 10_000
_RUNS = 16
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LEGEND = (
    f"*: the data as it is. random: records a second in shuffled batches of {BATCH}, by one "
    f"thread; gain: to the first line's, round by round; in order: the same without shuffling. "
    f"size: on the disk; start: a fresh process, to its first record; index: the same with an "
    f"empty cache; "
    f"memory: what a worker that has read all records needs for itself. Everything is in the "
    f"page cache; a disk that is slower than this gains more from forms that read in long runs. "
    f"Where these are some of the records, a form's own cache is smaller by as much."
)


@dataclass(slots=True)
class Form:
    """One form of the data, or the source itself.

    Attributes:
        name: The storage's name; of the source, with an asterisk.
        opens: The pickled opener; empty if packing failed.
        size_bytes: On the disk; None where it is not known.
        first: Measurements of the process that opened it first.
        rounds: Measurements of the later processes.
        why: The reason for a failed packing or measurement, or "".
    """

    name: str
    opens: bytes = b""
    size_bytes: int | None = None
    first: Measured | None = None
    rounds: list[Measured] = field(default_factory=list)
    why: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether there are figures of it."""
        return self.first is not None and bool(self.rounds) and not self.why

    def middle(self, name: str) -> float:
        """Take the median over the rounds of one of the figures of `Measured`."""
        return median(getattr(found, name) for found in self.rounds)

    def gain(self, source: Form) -> float | None:
        """Divide random reads by the source's of the same round: the median; None without any."""
        pairs = zip(self.rounds, source.rounds, strict=False)
        ratios = [mine.random / max(other.random, 1e-9) for mine, other in pairs]
        return median(ratios) if ratios else None


def form_names(wanted: bool | str | Sequence[str]) -> list[str]:
    """Return the forms that can be written, or the requested ones.

    Raises:
        ConfigError: There is no such form, or one was given twice.
    """
    known = [component.name for component in components("writer")]
    if wanted is True or wanted is False:
        return known
    wanted = [wanted] if isinstance(wanted, str) else wanted
    problems = []
    for name in wanted:
        if name not in known:
            near = nearest(name, known)
            text = f"no form {name!r} can be written, the forms are {', '.join(known)}"
            remedy = f"type bench.storages=[{near or known[0]}]"
            problems.append(Problem("bench.storages", f"{text}; {remedy}"))
        elif list(wanted).count(name) > 1:
            problems.append(Problem("bench.storages", f"{name} is given twice"))
    if problems:
        raise ConfigError(problems)
    return list(wanted)


def sampled_rows(source: Storage, records: int | None) -> NDArray[np.int64]:
    """Choose the records to pack: evenly spread runs, so that the order within them is kept.

    Args:
        source: The records.
        records: How many; None: 10,000, or as many as make 256 MB, by the size of some.

    Returns:
        int64 [n], ascending.
    """
    count = len(source)
    if records is None:
        records = max(1, min(_RECORDS, int(SAMPLE_BYTES / max(mean_bytes_of(source), 1))))
    if records >= count:
        return np.arange(count)
    runs = min(_RUNS, records)
    starts = np.arange(runs) * count // runs
    lengths = (np.arange(runs) + 1) * records // runs - np.arange(runs) * records // runs
    return np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])


def mean_bytes_of(source: Storage) -> float:
    """Mean bytes of a record's files, arrays and texts, by a few evenly spaced ones."""
    _, records = some_records(source, _LOOKED_AT)
    sizes = [record_checksum(record.fields, key=record.key)[1] for record in records]
    return sum(sizes) / max(len(records), 1)


def pack_form(
    name: str, source: Storage, folder: Path, *, recode: Recode | None = None, share: float = 1.0
) -> Form:
    """Pack records into one form; what it cannot hold, or what is missing for it, is its `why`.

    Args:
        name: The writer's.
        source: The records.
        folder: Does not exist; is made, or not if it cannot be.
        recode: Changes each record.
        share: Of the whole that these records are: a cache of `cache_bytes` is so much smaller,
            and holds as much of them as it would of the whole.

    Raises:
        DiskError: The disk is full.
    """
    component = find(f"writer/{name}")
    assert component is not None
    form = Form(name)
    try:
        writer = build(option_node(component))
        write_storage(writer, folder, source, recode=recode)
    except (ValueError, ImportError) as error:
        if not isinstance(error, ImportError) and not is_explained(error):
            raise
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        form.why = said.removeprefix("pack: ").removeprefix(f"{name}: ")
        return form
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskError(
            f"bench storages: {folder.parent}: {error.strerror}; give fewer bench.records, or a "
            f"folder with more room (TMPDIR=..., bench.keep=...)"
        ) from error
    form.size_bytes = folder_bytes(folder)
    storage = find(f"storage/{name}")
    if storage is None:
        form.why = f"no storage named {name!r} is registered, by which it could be read"
        return form
    make: Callable[..., Any] = storage.target
    arguments: dict[str, Any] = {}
    cache_bytes = option_node(storage).get("cache_bytes")
    if share < 1 and isinstance(cache_bytes, int):
        arguments["cache_bytes"] = int(cache_bytes * share)
    form.opens = pickle.dumps(partial(make, os.path.abspath(folder), **arguments))
    return form


def by_speed(forms: Sequence[Form]) -> list[Form]:
    """The source first, then the others, the fastest at random first."""
    source, *others = forms
    ranked = sorted(others, key=lambda form: form.middle("random") if form.is_measured else 0)
    return [form for form in (source, *reversed(ranked)) if form.is_measured]


def print_table(forms: Sequence[Form]) -> None:
    """Print a line for each form, and below it those that were not measured.

    Args:
        forms: The source first.
    """
    heads = ("form", "random", "gain", "in order", "size", "start", "index", "memory")
    write_table(heads, [_cells(form, forms[0]) for form in by_speed(forms)])
    heading(_LEGEND)
    if any(form.why or (form.first is not None and form.first.bad) for form in forms):
        write("")
    for form in forms:
        if form.why:
            say("failed" if form.opens else "not possible", f"{form.name}: {form.why}")
        elif form.first is not None and form.first.bad:
            say("unreadable", f"{form.name}: {form.first.bad:,} of its records cannot be read")


def _cells(form: Form, source: Form) -> tuple[str, ...]:
    assert form.first is not None
    ratio = form.gain(source)
    return (
        form.name,
        f"{form.middle('random'):,.0f}/s",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{form.middle('sequential'):,.0f}/s",
        _megabytes(form.size_bytes),
        f"{form.middle('open_s'):.2f} s",
        f"{form.first.open_s:.2f} s",
        _megabytes(form.first.own_bytes),
    )


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"


def advice(forms: Sequence[Form], mean_bytes: float, decode_us: float | None) -> str:
    """One to three sentences about these records.

    Args:
        forms: The source first; those without figures are passed over.
        mean_bytes: Of a record.
        decode_us: Processor time of decoding one, microseconds; None if unknown.
    """
    ranked = by_speed(forms)
    source = next((form for form in ranked if form is forms[0]), None)
    packed = [form for form in ranked if form is not source]
    if not packed:
        return ""
    best = packed[0]
    fast = _ALIKE * best.middle("random")
    alike = [form.name for form in packed if form.middle("random") >= fast]
    ratio = None if source is None else best.gain(source)
    size = f"records of {mean_bytes / 1e3:,.1f} kB"
    if ratio is not None and ratio * _ALIKE <= 1:
        said = [f"For shuffled reading of {size}, no form beats the data as it is here."]
    else:
        more = "" if ratio is None else f", {ratio:.1f} times as fast as the data as it is"
        said = [f"For shuffled reading of {size}: {' or '.join(alike)}{more}."]
    if decode_us is not None:
        slowest = (source or packed[-1]).middle("random_us")
        share = slowest / (slowest + decode_us)
        verdict = (
            "so the form decides little about speed from the page cache"
            if share < _SMALL_SHARE
            else f"so reading is {share:.0%} of the two together"
        )
        what = "it as it is" if source is not None else f"it from {packed[-1].name}"
        said.append(
            f"Decoding a record takes {decode_us:,.0f} µs of the processor, reading {what} "
            f"{slowest:,.0f} µs, {verdict}."
        )
    others = [
        f"{form.name} ({_megabytes(form.size_bytes)})" for form in packed if form.name in _EXCHANGE
    ]
    if others:
        said.append(f"To exchange with other programs: {' or '.join(sorted(others))}.")
    return " ".join(said)


def compare_storages(points: Points) -> int:
    """Pack some records into each form, measure reading, print a table and advice.

    Returns:
        1 if a form that can hold the data could not be measured, else 0.

    Raises:
        ConfigError: Several points, unknown forms, or a folder to keep them that is taken.
        ValueError: The split is empty.
        DiskError: The disk is full.
    """
    if len(points.points) > 1:
        text = "several values given, storages are compared for one configuration; give one value"
        raise ConfigError([Problem(points.keys[0], text)])
    config = points.points[0].config
    settings: BenchSettings = build_settings(config["bench"])
    names = form_names(settings.storages)
    keep = _place_to_keep(config, settings.keep)
    whole = open_storage(config, settings.split)
    if not len(whole):
        raise ValueError(f"bench storages: {whole} is empty; check dataset.storage.path")
    rows = sampled_rows(whole, settings.records)
    source = Subset(whole, rows)
    seconds = len(names) * _PACK_S + (len(names) + 1) * (
        settings.seconds + settings.rounds * _START_S
    )
    say("bench", f"{len(rows):,} of {len(whole):,} records of {whole} in {len(names)} forms, "
        f"roughly {seconds:.0f} s; Ctrl-C ends it with the results so far")  # fmt: skip
    with terminated_as_interrupt(), _scratch(keep) as (folder, caches):
        name = config["dataset"]["storage"]["_target_"].rpartition("/")[2]
        forms = [Form(f"{name}*")]
        forms[0].opens = pickle.dumps(
            partial(open_some, storage_opener(config, settings.split), rows)
        )
        if "size_bytes" in source.index.columns:
            forms[0].size_bytes = int(source.index.column("size_bytes").sum(dtype="int64"))
        mean_bytes = mean_bytes_of(source)
        try:
            for name in names:
                doing(f"packing {len(source):,} records as {name}")
                share = len(rows) / len(whole)
                forms.append(pack_form(name, source, folder / name, share=share))
            measure_forms(forms, config["imports"], caches, settings)
        finally:
            clear()
            if any(form.is_measured for form in forms):
                print_table(forms)
                said = advice(forms, mean_bytes, decoding_us(config, source))
                if said:
                    write("\n" + textwrap.fill(said, width(), break_on_hyphens=False))
                if keep is not None:
                    say("kept", f"{keep}: train on one of them by dataset=<form> "
                        f"dataset.storage.path={keep}/<form> dataset.val_fraction=0")  # fmt: skip
    return int(any(form.why and form.opens for form in forms))


def _place_to_keep(config: dict[str, Any], text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    refuse_nesting(config, text, "bench.keep")
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ConfigError([Problem("bench.keep", f"{text} is there already; name a new folder")])
    return path


@contextmanager
def _scratch(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    """Make a folder for the forms, permanent at `keep`, and a temporary one for their indexes."""
    try:
        with tempfile.TemporaryDirectory(dir=own_folder()) as name:
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
            yield keep or Path(name), Path(name) / ".caches"
    finally:
        if keep is not None:
            with suppress(OSError):  # it holds something, or was never made
                keep.rmdir()


def measure_forms(
    forms: Sequence[Form], imports: Sequence[str], caches: Path, settings: BenchSettings
) -> None:
    """Measure what could be packed: each first opened and read whole, then all in turn.

    Args:
        forms: The forms to measure; sets their `first`, `rounds` and `why`.
        imports: Modules of the user's.
        caches: A folder for the caches of indexes, one for each form.
        settings: Seconds and rounds.
    """
    for number in range(-1, settings.rounds):
        for form in reversed(forms) if number % 2 and number > 0 else forms:
            if not form.opens or form.why:
                continue
            cache = str(caches / str(forms.index(form)))
            try:
                if number < 0:
                    doing(f"opening {form.name}, and reading all of it once")
                    form.first = measure(form.opens, imports, cache)
                else:
                    doing(f"round {number + 1} of {settings.rounds}: {form.name}")
                    seconds = settings.seconds / settings.rounds
                    found = measure(form.opens, imports, cache, seconds=seconds, seed=number)
                    form.rounds.append(found)
            except MeasureError as error:
                form.why = str(error)


def decoding_us(config: dict[str, Any], source: Storage) -> float | None:
    """Processor time of decoding a record, microseconds; None if it is unknown."""
    node, (_, records) = config["dataset"].get("decode"), some_records(source, _LOOKED_AT)
    if node is None or not records:
        return None
    decode: Decoder = build(node)
    if abilities_of(decode, Decoder).unchanged:
        return None
    try:
        decode(records[0])
        done, start = 0, time.thread_time()
        while (passed := time.thread_time() - start) < _DECODE_S:
            sample = decode(records[done % len(records)])
            image = sample.get("image")
            if isinstance(image, PendingImage):  # it waits for a crop to say what is needed
                image.whole()
            done += 1
    except ValueError:
        return None
    return passed / done * 1e6
