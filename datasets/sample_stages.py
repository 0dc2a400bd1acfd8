"""Convert records to samples: decode with renamed fields, then transform at a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import TransformCapabilities, capabilities_of
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import (
    STATED_SIZE,
    BadRecord,
    BadSample,
    DrawnImage,
    PendingImage,
    Record,
    RecordError,
    Sample,
)
from penstock.core.user_errors import is_explained

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.core.contracts import Transform
    from penstock.core.stage_times import StageTimes


_RESERVED = ("index", "key", "position")
_REST = "*"
RUN = 16
"""Samples whose random draws precede the pixels of the first one; their files stay in memory."""


class DecodeStage:
    """Converts records to samples: rename, pick and drop fields, then decode.

    Args:
        decode: The decoder.
        keys: New names by field name: ``{jpg: image}`` renames, ``{mask: null}`` drops,
            ``{"*": null, image: image, label: label}`` keeps only these two.
        storage: The storage's name in messages.
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
        for name in (*self.keys, *names):
            if name in _RESERVED:
                raise ValueError(f"dataset.keys: {name!r} is reserved; leave it out")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"dataset.keys: two fields are renamed to {name!r}; keep one")
        if self.keys.get(_REST, None) is not None:
            raise ValueError(
                f"dataset.keys: '*' stands for all other fields and can only be null, "
                f"got {self.keys[_REST]!r}"
            )

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
            raise RuntimeError(
                f"{self.storage}: {record.key!r} (record {record.index}): decoding failed: "
                f"{type(error).__name__}: {error}"
            ) from error

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
                raise ValueError(
                    f"dataset.keys: no field {name!r} in {record.key!r} of {self.storage}; "
                    f"fields: {', '.join(record.fields)}"
                )
            if new_name in fields:
                raise ValueError(
                    f"dataset.keys: {name!r} is renamed to {new_name!r}, which is there already; "
                    f"drop it with {{{new_name}: null}} or choose another name"
                )
            fields[new_name] = record.fields[name]
        return fields


class TransformStage:
    """Transforms samples, with draws that depend on (seed, epoch, position) alone.

    `row_shape` is the shape of the last uint8 image, as a guess for the next ones.
    """

    row_shape: tuple[int, int, int] | None

    def __init__(self, transform: Transform, *, seed: int, storage: str) -> None:
        self.transform: Any = transform
        self.seed = seed
        self.storage = storage
        self.row_shape = None
        self._can = capabilities_of(transform, TransformCapabilities)

    def __call__(
        self,
        sample: Sample | BadRecord,
        position: int,
        epoch: int,
        *,
        into: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
        partners: Sequence[list[Sample]] | BadRecord | None = None,
        keyed: KeyedRng | None = None,
    ) -> Sample | BadSample:
        """Transform one sample; return a bad sample if a pending image is damaged.

        An image of the shape of `into`, uint8, is written there. `partners` are the samples for
        each step that needs some, or the bad record that left a step without them.

        Raises:
            RuntimeError: The transform or its arguments are wrong; the cause is chained.
            ValueError: The same, if the message of the cause explains it.
        """
        if isinstance(sample, BadRecord):
            return BadSample(sample.index, sample.key, position, sample.cause, self.storage)
        if isinstance(partners, BadRecord):
            cause = f"no partner could be read, the last was {partners.key!r}: {partners.cause}"
            key = str(sample.get("key"))
            return BadSample(int(sample["index"]), key, position, cause, self.storage)
        sample["position"] = position
        image = sample.get("image")
        with _Clock(times, image):
            rng = (keyed or KeyedRng()).at(self.seed, epoch, position, Stream.AUGMENT)
            try:
                return self._put(self._transformed(sample, rng, into, partners), into)
            except Exception as error:
                return self._failed(error, sample)

    def each(
        self,
        samples: Iterable[Sample | BadRecord],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Transform samples at positions, int64 [n]; images go to `rows`, uint8 [n, *row_shape].

        The draws of several samples precede the pixels of the first. Alternating would be slower,
        because decoding evicts the interpreter from a core's caches.
        """
        draws_first, keyed = self._can.draw is not None, KeyedRng()
        done: list[Sample | BadSample] = []
        first = 0
        for row, (sample, position) in enumerate(zip(samples, positions.tolist(), strict=True)):
            if draws_first and isinstance(sample, dict) and _is_pending(sample):
                done.append(self._draw(sample, position, epoch, times, keyed))
            else:
                into = None if rows is None else rows[row]
                done.append(self(sample, position, epoch, into=into, times=times, keyed=keyed))
            if len(done) - first == RUN:
                self._fill(done, first, rows, times)
                first = len(done)
        self._fill(done, first, rows, times)
        return done

    def _draw(
        self,
        sample: Sample,
        position: int,
        epoch: int,
        times: StageTimes | None,
        keyed: KeyedRng,
    ) -> Sample | BadSample:
        sample["position"] = position
        with _Clock(times, sample["image"]):
            rng = keyed.at(self.seed, epoch, position, Stream.AUGMENT)
            try:
                assert self._can.draw is not None
                return self._can.draw(sample, rng)
            except Exception as error:
                return self._failed(error, sample)

    def _fill(
        self,
        done: list[Sample | BadSample],
        first: int,
        rows: NDArray[np.uint8] | None,
        times: StageTimes | None,
    ) -> None:
        """Make the pixels of ``done[first:]``."""
        start, decoding_s = time.perf_counter(), 0.0
        for row in range(first, len(done)):
            sample = done[row]
            if isinstance(sample, BadSample):
                continue
            image = sample.get("image")
            into = None if rows is None else rows[row]
            if isinstance(image, DrawnImage):
                decoding_s -= image.source.seconds
                try:
                    sample["image"] = image.fill(into)
                except Exception as error:
                    done[row] = self._failed(error, sample)
                    continue
                finally:
                    decoding_s += image.source.seconds
            if sample.get("image") is not into:
                done[row] = self._put(sample, into)
        if times is not None:
            times.decode += decoding_s
            times.transform += time.perf_counter() - start - decoding_s

    def _failed(self, error: Exception, sample: Sample) -> BadSample:
        """Return a bad sample for a damaged image; raise any other error."""
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

    def _transformed(
        self,
        sample: Sample,
        rng: np.random.Generator,
        into: NDArray[np.uint8] | None,
        partners: Sequence[list[Sample]] | None,
    ) -> Sample:
        more: dict[str, Any] = {}
        if into is not None and self._can.fills_rows:
            more["into"] = into
        if partners is not None:
            more["partners"] = partners
        changed = self.transform(sample, rng, **more)
        if not isinstance(changed, dict):
            raise TypeError(f"gave {type(changed).__name__}, expected the sample, a dict")
        return changed

    def _put(self, sample: Sample, into: NDArray[np.uint8] | None) -> Sample:
        """Move the sample's image into its row of the batch, if it fits."""
        image: Any = sample.get("image")
        if image is into or not _is_uint8_image(image):
            return sample
        self.row_shape = image.shape
        if into is None or into.shape != image.shape:
            return sample
        into[...] = image
        # A new dict: the transform may keep the old one, and must not keep a row.
        return {**sample, "image": into}


class _Clock:
    """Adds the time of a block to `times`; the time of a pending image counts as ``decode``."""

    __slots__ = ("_decoded_s", "_image", "_start", "_times")

    def __init__(self, times: StageTimes | None, image: Any) -> None:
        self._times = times
        self._image = image if isinstance(image, PendingImage) else None

    def __enter__(self) -> None:
        self._decoded_s = 0.0 if self._image is None else self._image.seconds
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._times is not None:
            passed_s = time.perf_counter() - self._start
            decoding_s = 0.0 if self._image is None else self._image.seconds - self._decoded_s
            self._times.decode += decoding_s
            self._times.transform += passed_s - decoding_s


def _is_pending(sample: Sample) -> bool:
    return isinstance(sample.get("image"), PendingImage)


def _is_uint8_image(image: Any) -> bool:
    import numpy as np

    return isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
