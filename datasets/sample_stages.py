"""Convert records to samples: decode with renamed fields, then transform at a position."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Transform
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import (
    STATED_SIZE,
    BadRecord,
    BadSample,
    PendingImage,
    Record,
    RecordError,
    Sample,
)
from penstock.core.stage_times import StageTimes
from penstock.core.user_errors import is_explained

_RESERVED = ("index", "key", "position")
_REST = "*"


class DecodeStage:
    """Converts records to samples: rename, pick and drop fields, then decode.

    `keys` are new names by field name: ``{jpg: image}`` renames, ``{mask: null}`` drops, and
    ``{"*": null, image: image, label: label}`` keeps only these two.
    """

    def __init__(
        self,
        decode: Callable[[Record], Sample],
        *,
        keys: Mapping[str, str | None] | None,
        storage: str,
    ) -> None:
        self.decode = decode
        self.keys = dict(keys or {})
        self.storage = storage
        names = [name for name in self.keys.values() if name is not None]
        if wrong := [name for name in (*self.keys, *names) if name in _RESERVED]:
            raise ValueError(f"dataset.keys: {wrong[0]!r} is reserved; leave it out")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"dataset.keys: two fields are renamed to {twice[0]!r}; keep one")

    def __call__(self, record: Record | BadRecord) -> Sample | BadRecord:
        """Decode one record to a sample without a position; RuntimeError if the decoder fails."""
        if isinstance(record, BadRecord):
            return record
        if self.keys:
            record = replace(record, fields=self.renamed(record))
        try:
            return self.decode(record)
        except RecordError as error:
            return BadRecord(record.index, record.key, str(error))
        except MemoryError:  # it ends the worker process, and the batch is retried
            raise
        except Exception as error:
            where = f"{self.storage}: {record.key!r} (record {record.index}): decoding failed"
            raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error

    def each(
        self, records: Iterable[Record | BadRecord], times: StageTimes
    ) -> Iterator[Sample | BadRecord]:
        """Decode records lazily; add the time to `times`."""
        for record in records:
            start = time.perf_counter()
            sample = self(record)
            times.decode += time.perf_counter() - start
            yield sample

    def renamed(self, record: Record) -> Sample:
        """Return the fields of a record under their new names."""
        if not self.keys:
            return record.fields
        fields: Sample = {}
        if _REST not in self.keys:
            fields = {name: v for name, v in record.fields.items() if name not in self.keys}
        elif STATED_SIZE in record.fields:  # the decoder needs it to check boxes
            fields[STATED_SIZE] = record.fields[STATED_SIZE]
        for name, new_name in self.keys.items():
            if new_name is None:
                continue
            if name not in record.fields:
                where, known = f"{record.key!r} of {self.storage}", ", ".join(record.fields)
                raise ValueError(f"dataset.keys: no field {name!r} in {where}; fields: {known}")
            if new_name in fields:
                raise ValueError(f"dataset.keys: {new_name!r} is there already; drop it")
            fields[new_name] = record.fields[name]
        return fields


class TransformStage:
    """Transforms samples, with draws that depend on (seed, epoch, position) alone."""

    row_shape: tuple[int, int, int] | None = None

    def __init__(self, transform: Transform, *, seed: int, storage: str) -> None:
        self.transform: Any = transform
        self.seed = seed
        self.storage = storage

    def each(
        self,
        samples: Iterable[Sample | BadRecord],
        positions: Iterable[int],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
        partners: Iterable[Sequence[list[Sample]] | BadRecord] | None = None,
    ) -> list[Sample | BadSample]:
        """Transform samples at positions; images go to `rows`, uint8 [n, *row_shape].

        `samples` may decode lazily. `partners` has samples for each step that needs some, or the
        bad record that left a step without them.
        """
        times = StageTimes() if times is None else times
        start, decode_s, keyed = time.perf_counter(), times.decode, KeyedRng()
        done: list[Sample | BadSample] = []
        others = itertools.repeat(None) if partners is None else partners
        for sample, position, more in zip(samples, map(int, positions), others, strict=False):
            if isinstance(sample, BadRecord):
                bad = BadSample(sample.index, sample.key, position, sample.cause, self.storage)
                done.append(bad)
                continue
            into = None if rows is None else rows[len(done)]
            rng = keyed.at(self.seed, epoch, position, Stream.AUGMENT)
            image = sample.get("image")
            done.append(self._transformed({**sample, "position": position}, rng, more, into))
            if isinstance(image, PendingImage):
                times.decode += image.seconds
        times.transform += time.perf_counter() - start - (times.decode - decode_s)
        return done

    def _transformed(
        self,
        sample: Sample,
        rng: np.random.Generator,
        partners: Sequence[list[Sample]] | BadRecord | None,
        into: NDArray[np.uint8] | None,
    ) -> Sample | BadSample:
        if isinstance(sample.get("image"), PendingImage):
            sample["image"].into = into
        try:
            if isinstance(partners, BadRecord):
                cause = f"the last was {partners.key!r}: {partners.cause}"
                raise RecordError(f"no partner could be read, {cause}")
            more: dict[str, Any] = {} if partners is None else {"partners": partners}
            changed: Sample = self.transform(sample, rng, **more)
            if not isinstance(changed, dict):
                raise TypeError(f"gave {type(changed).__name__}, expected the sample, a dict")
        except Exception as error:
            return self._failed(error, sample)
        image = changed.get("image")
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3:
            self.row_shape = image.shape
            if into is not None and image is not into and into.shape == image.shape:
                into[...] = image
                # A new dict: the transform may keep the old one, and must not keep a row.
                changed = {**changed, "image": into}
        return changed

    def _failed(self, error: Exception, sample: Sample) -> BadSample:
        if isinstance(error, RecordError):
            key, position = str(sample.get("key")), int(sample["position"])
            return BadSample(int(sample["index"]), key, position, str(error), self.storage)
        if isinstance(error, MemoryError):
            raise error
        where = "; ".join(vars(error).get("__notes__", ())) or "in the transform"
        what = f"{self.storage}: {sample.get('key')!r} at position {sample['position']}: {where}: "
        if is_explained(error):
            raise ValueError(f"{what}{error}") from error
        raise RuntimeError(f"{what}{type(error).__name__}: {error}") from error
