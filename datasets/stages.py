"""Record to sample, before anything is drawn: fields are renamed, and the decoder runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from datasets.sample import BadRecord, Record, Sample

if TYPE_CHECKING:
    from datasets.protocols import Decoder, Transform

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
