"""What a packed ZIP archive says of its records: a hidden member beside the image files.

The member is an Arrow file with the columns of `datasets.formats.arrow_records`, among them the
name of the member that is the record's image.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.unique_keys import refuse_twice
from datasets.data_files import DataFiles
from datasets.file_reader import MissingFile
from datasets.formats.arrow_damage import DamagedFile, damage
from datasets.formats.arrow_roles import Roles, find_roles
from datasets.formats.arrow_values import Row, read_rows
from datasets.formats.zip_members import NO_MEMBER, PLACE, DamagedMember, Member, read_member
from datasets.shared_file import EndOfFile, OpenFiles

SIDECAR = ".penstock.arrow"
MEMBER = "penstock_member"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The records of one archive.

    Attributes:
        batches: Their rows, ``pyarrow.RecordBatch``, in order.
        roles: What the columns become.
    """

    batches: Sequence[Any]
    roles: Roles

    def column(self, name: str) -> list[Any]:
        """Arrays of one column."""
        return [batch.column(batch.schema.get_field_index(name)) for batch in self.batches]

    def rows(self, rows: NDArray[np.int64]) -> list[Row]:
        """The fields of some records, int64 [n], but for images that are files."""
        ends = np.cumsum([len(batch) for batch in self.batches])
        found: list[Row] = []
        for row in rows.tolist():
            part = int(np.searchsorted(ends, row, side="right"))
            if part == len(ends):
                found.append("it is not what it was when the index was made")
                continue
            batch = self.batches[part]
            found += read_rows(batch, [row - int(ends[part]) + len(batch)], self.roles)
        return found


def open_sidecar(content: bytes, columns: Collection[str] | None = None) -> Sidecar:
    """Read what is in the hidden member.

    Args:
        content: Its bytes.
        columns: Columns that are to be checked; None: all.

    Raises:
        DamagedFile: It cannot be read.
    """
    import pyarrow as pa

    with damage():
        reader = pa.ipc.open_file(pa.BufferReader(content))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            wanted = batch if columns is None else batch.select(
                [name for name in batch.schema.names if name in columns])  # fmt: skip
            wanted.validate(full=True)
        schema = reader.schema
        if not {"key", MEMBER} <= set(schema.names):
            raise DamagedFile("it names no keys and members")
        roles = find_roles(
            schema,
            image_column=None,
            label_column=None,
            key_column="key",
            columns=[name for name in schema.names if name != MEMBER],
            where=SIDECAR,
        )
    return Sidecar(batches, roles)


@dataclass(slots=True)
class PackedArchives:
    """What the hidden members of all archives say.

    Attributes:
        found: Key, archive and member of every record; `NO_MEMBER` for one without an image.
        rows: Its row in the hidden member.
        places: Where the hidden member of every archive lies; see `PLACE`.
        labels: Their labels, a ``pyarrow.ChunkedArray``, or None.
        roles: What the columns become.
    """

    found: list[tuple[str, int, Member]]
    rows: list[int]
    places: list[dict[str, int]]
    labels: Any
    roles: Any


def look_at_sidecars(
    files: DataFiles,
    listed: Sequence[Sequence[Member]],
    hidden: Sequence[Member],
    opened: OpenFiles,
    *,
    where: str,
) -> PackedArchives:
    """Read the hidden members of archives.

    Args:
        files: The archives.
        listed: The members of each.
        hidden: The hidden one among them.
        opened: The archives, to be read from.
        where: The storage, for messages.

    Raises:
        ValueError: One is damaged, or names a member that is not there, or a key stands twice.
    """
    import pyarrow as pa

    all_found = PackedArchives([], [], [], None, None)
    labels: list[Any] = []
    for number, (name, members, member) in enumerate(zip(files.names, listed, hidden, strict=True)):
        place = {part: getattr(member, part) for part in PLACE}
        try:
            content = read_member(opened[name], **place)
            sidecar = open_sidecar(content, ("key", "label", MEMBER))
        except (DamagedFile, DamagedMember, EndOfFile, MissingFile) as error:
            raise ValueError(
                f"{where}: damaged: {name}, {SIDECAR}: {error}; copy it again, or take it away"
            ) from error
        by_name = {member.name: member for member in members} | {"": NO_MEMBER}
        keys = [key for array in sidecar.column("key") for key in array.to_pylist()]
        images = [text for array in sidecar.column(MEMBER) for text in array.to_pylist()]
        for key, image in zip(keys, images, strict=True):
            if image not in by_name or key is None:
                raise ValueError(f"{where}: {name}: no member {image!r}, which is {key!r}")
            all_found.found.append((key, number, by_name[image]))
        all_found.rows += range(len(keys))
        all_found.places.append(place)
        all_found.roles = sidecar.roles
        if sidecar.roles.label is not None:
            labels += sidecar.column(sidecar.roles.label)
    refuse_twice([key.encode() for key, *_ in all_found.found], where=where)
    all_found.labels = pa.chunked_array(labels) if labels else None
    return all_found
