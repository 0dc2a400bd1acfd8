"""What every dataset does with a record: decode it, then transform it at a position."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from datasets.pending_image import DamagedImageError, PendingImage
from datasets.sample import BadRecord, BadSample, Record, Sample
from pipeline.rng import KeyedRng, Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.protocols import Decoder, Transform
    from datasets.stage_times import StageTimes

_RESERVED = ("index", "key", "position")
_REST = "*"


def deferred(decode: Decoder, transform: Transform) -> Decoder:
    """Let images wait for their crop, if the decoder can and the transform begins with one.

    Args:
        decode: The decoder; what can leave images pending has a method `defer`.
        transform: What follows it; what can take them has a method `whole_because`.

    Returns:
        ``decode.defer`` or `decode`; the transform gives the same sample after both.
    """
    whole_because = getattr(transform, "whole_because", None)
    if whole_because is None or whole_because() is not None:
        return decode
    defer: Decoder = getattr(decode, "defer", decode)
    return defer


class DecodeStage:
    """Record to sample, with fields renamed, picked and dropped before anything is decoded.

    Args:
        decode: The decoder; None where a storage gives samples already.
        keys: New names by field name: ``{jpg: image}`` renames, ``{mask: null}`` drops,
            ``{"*": null, image: image, label: label}`` keeps only what it names.
        storage: What messages call the storage.

    Raises:
        ValueError: Two fields get one name, or a reserved name is given or taken away.
    """

    def __init__(
        self, decode: Decoder, *, keys: Mapping[str, str | None] | None, storage: str
    ) -> None:
        self.decode = decode
        self.keys = dict(keys or {})
        self.storage = storage
        names = [name for name in self.keys.values() if name is not None]
        for name in (*self.keys, *names):
            if name in _RESERVED:
                raise ValueError(f"dataset.keys: {name!r} is the framework's own; leave it out")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"dataset.keys: two fields are renamed to {name!r}; keep one")
        if self.keys.get(_REST, None) is not None:
            raise ValueError(
                f"dataset.keys: '*' stands for all other fields and can only be null, "
                f"got {self.keys[_REST]!r}"
            )

    def __call__(self, record: Record | BadRecord) -> Sample | BadRecord:
        """Decode one record.

        Returns:
            The sample without a position, or why there is none.

        Raises:
            ValueError: A field to be renamed is not there, or two fields get one name.
            RuntimeError: The decoder failed in a way that is no damage; the cause is chained.
        """
        if isinstance(record, BadRecord):
            return record
        if self.keys:
            record = replace(record, fields=self.renamed(record))
        try:
            return self.decode(record)
        except ValueError as error:
            return BadRecord(record.index, record.key, str(error))
        except Exception as error:
            raise RuntimeError(
                f"{self.storage}: {record.key!r} (record {record.index}): decoding failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def renamed(self, record: Record) -> Sample:
        """The fields of a record under their new names.

        Raises:
            ValueError: A field to be renamed is not there, or two fields get one name.
        """
        if not self.keys:
            return record.fields
        fields: Sample = {}
        if _REST not in self.keys:
            fields = {name: v for name, v in record.fields.items() if name not in self.keys}
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
    """Sample to sample at a position, with draws that only (seed, epoch, position) decide.

    Args:
        transform: The transform; one that `fills_rows` takes an argument `into`.
        seed: The run's seed.
        storage: What messages call the storage.

    Attributes:
        row_shape: Height, width and channels of the last uint8 image that came out, which is
            the likely shape of the next ones; None before there was one.
    """

    row_shape: tuple[int, int, int] | None

    def __init__(self, transform: Transform, *, seed: int, storage: str) -> None:
        self.transform = transform
        self.seed = seed
        self.storage = storage
        self.row_shape = None
        self._local = threading.local()

    def __call__(
        self,
        sample: Sample | BadRecord,
        position: int,
        epoch: int,
        *,
        into: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
        partners: Sequence[list[Sample]] | BadRecord | None = None,
    ) -> Sample | BadSample:
        """Transform one sample.

        Args:
            sample: The decoded sample, or why there is none.
            position: Its position in the epoch.
            epoch: The epoch.
            into: uint8 [*row_shape], where the image is put if it is of that shape.
            times: Its `transform` and `decode` are added to.
            partners: The samples for each step that needs others, or why there are none; None
                where no step does.

        Returns:
            The sample with its ``position``; bad stays bad, and becomes so where a pending
            image turns out to be damaged.

        Raises:
            RuntimeError: The transform failed. That is a mistake in it or its arguments, not
                in the data, so it is no bad sample: it stops the run and the cause is chained.
        """
        if isinstance(sample, BadRecord):
            return BadSample(sample.index, sample.key, position, sample.cause, self.storage)
        if isinstance(partners, BadRecord):
            cause = f"no partner could be read, the last was {partners.key!r}: {partners.cause}"
            key = str(sample.get("key"))
            return BadSample(int(sample["index"]), key, position, cause, self.storage)
        sample["position"] = position
        image = sample.get("image")
        start = time.perf_counter()
        rng = self._keyed_rng().at(self.seed, epoch, position, Stream.AUGMENT)
        try:
            changed = self._transformed(sample, rng, into, partners)
            if not isinstance(changed, dict):
                raise TypeError(f"gave {type(changed).__name__}, expected the sample, a dict")
            return self._put(changed, into)
        except DamagedImageError as error:
            key = str(sample.get("key"))
            return BadSample(int(sample["index"]), key, position, str(error), self.storage)
        except Exception as error:
            where = "; ".join(getattr(error, "__notes__", ())) or "in the transform"
            raise RuntimeError(
                f"{self.storage}: {sample.get('key')!r} at position {position}: {where}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            if times is not None:
                decoding_s = image.seconds if isinstance(image, PendingImage) else 0.0
                times.decode += decoding_s
                times.transform += time.perf_counter() - start - decoding_s

    def _transformed(
        self,
        sample: Sample,
        rng: np.random.Generator,
        into: NDArray[np.uint8] | None,
        partners: Sequence[list[Sample]] | None,
    ) -> Sample:
        more: dict[str, Any] = {}
        if into is not None and getattr(self.transform, "fills_rows", False):
            more["into"] = into
        if partners is not None:
            more["partners"] = partners
        return self.transform(sample, rng, **more)

    def _put(self, sample: Sample, into: NDArray[np.uint8] | None) -> Sample:
        """The sample with its image in the row that is meant for it, if it fits."""
        image: Any = sample.get("image")
        if image is into or not _is_uint8_image(image):
            return sample
        self.row_shape = image.shape
        if into is None or into.shape != image.shape:
            return sample
        into[...] = image
        # A new dict: a transform may have kept the one it gave, and a row is not to be kept.
        return {**sample, "image": into}

    def _keyed_rng(self) -> KeyedRng:
        """This thread's generator."""
        rng: KeyedRng | None = getattr(self._local, "rng", None)
        if rng is None:
            rng = self._local.rng = KeyedRng()
        return rng

    def __getstate__(self) -> tuple[Transform, int, str]:
        return self.transform, self.seed, self.storage

    def __setstate__(self, state: tuple[Transform, int, str]) -> None:
        self.transform, self.seed, self.storage = state
        self.row_shape = None
        self._local = threading.local()


def _is_uint8_image(image: Any) -> bool:
    import numpy as np

    return isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
