"""``python -m pipeline bench storages``: the user's records in every form, and what each gives."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.pending_image import PendingImage
from datasets.sample import Record
from datasets.subset import Subset
from pipeline.build import build_settings, open_storage, storage_opener
from pipeline.commands.bench.forms import (
    Form,
    form_names,
    measured,
    pack_form,
    refuse_full,
    sampled_rows,
    size_of,
    some_of,
)
from pipeline.commands.bench.screen import clear, doing, say
from pipeline.commands.bench.storage_process import Job, MeasureError, OpenSome, measure, opener
from pipeline.commands.bench.storage_table import Data, print_advice, print_table
from pipeline.commands.pack import refuse_nesting
from pipeline.config.errors import ConfigError, Problem
from pipeline.config.objects import build
from pipeline.packing.run import terminated_as_interrupt

if TYPE_CHECKING:
    from pipeline.commands.bench import BenchSettings
    from pipeline.config.points import Points

AS_IT_IS = "*"
_PACK_S = 2.0
_START_S = 0.6
_DECODE_S = 0.3


def compare_storages(points: Points) -> int:
    """Pack some records into each form, measure reading, print a table and advice.

    Returns:
        1 if a form that can hold the data could not be measured, else 0.

    Raises:
        ConfigError: Several points, unknown forms, or a folder to keep them that is taken.
        ValueError: There are no records, or the disk is full.
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
        raise ValueError(f"bench storages: {whole} has no records; check dataset.storage.path")
    rows = sampled_rows(whole, settings.records)
    source = Subset(whole, rows)
    seconds = len(names) * _PACK_S + (len(names) + 1) * (
        settings.seconds + settings.rounds * _START_S
    )
    say("bench", f"{len(rows):,} of {len(whole):,} records of {whole} in {len(names)} forms, "
        f"roughly {seconds:.0f} s; Ctrl-C ends it with what is known so far")  # fmt: skip
    with terminated_as_interrupt(), _scratch(keep) as (folder, caches):
        forms = [Form(f"{_name(config)}{AS_IT_IS}")]
        forms[0].opens = opener(OpenSome(storage_opener(config, settings.split), rows))
        if "size_bytes" in source.index.columns:
            forms[0].size_bytes = int(source.index.column("size_bytes").sum(dtype="int64"))
        known = some_of(source)
        mean_bytes = sum(map(size_of, known)) / max(len(known), 1)
        try:
            for name in names:
                refuse_full(folder, len(source), mean_bytes)
                doing(f"packing {len(source):,} records as {name}")
                share = len(rows) / len(whole)
                forms.append(pack_form(name, source, folder / name, share=share))
            measure_forms(forms, config["imports"], caches, settings)
        finally:
            clear()
            if any(measured(forms)):
                data = Data(
                    records=len(rows),
                    mean_bytes=mean_bytes,
                    decode_us=decoding_us(config, known),
                )
                print_table(forms)
                print_advice(forms, data)
                if keep is not None:
                    say("kept", f"{keep}: train on one of them by dataset=<form> "
                        f"dataset.storage.path={keep}/<form> dataset.val_fraction=0")  # fmt: skip
    return int(any(form.why and form.opens for form in forms))


def _name(config: dict[str, Any]) -> str:
    name: str = config["dataset"]["storage"]["_target_"]
    return name.rpartition("/")[2]


def _place_to_keep(config: dict[str, Any], text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    refuse_nesting(config, path, "bench.keep")
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ConfigError([Problem("bench.keep", f"{text} is there already; name a new folder")])
    return path


@contextmanager
def _scratch(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    """The folder of the forms, and that of their cached indexes; only what is kept stays."""
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-storages-") as name:
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
        forms: What is measured; their `first`, `rounds` and `why` are set.
        imports: Modules of the user's.
        caches: A folder for the caches of indexes, one for each form.
        settings: Seconds and rounds.
    """

    def job(form: Form, what: Any, seed: int = 0) -> Any:
        cache = str(caches / str(forms.index(form)))
        seconds = settings.seconds / settings.rounds
        try:
            return measure(Job(form.opens, imports, cache, what, seconds, seed))
        except MeasureError as error:
            form.why = str(error)
            return None

    for form in forms:
        if form.opens and not form.why:
            doing(f"opening {form.name}, and reading all of it once")
            form.first = job(form, "first")
    for number in range(settings.rounds):
        for form in forms if number % 2 == 0 else reversed(forms):
            if form.first is not None and not form.why:
                doing(f"round {number + 1} of {settings.rounds}: {form.name}")
                found = job(form, "round", seed=number)
                if found is not None:
                    form.rounds.append(found)


def decoding_us(config: dict[str, Any], records: Sequence[Record]) -> float | None:
    """Processor time of decoding a record, microseconds; None where it cannot be told."""
    node = config["dataset"].get("decode")
    if node is None or not records:
        return None
    decode: Callable[[Record], Any] = build(node)
    if getattr(decode, "unchanged", False):
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
