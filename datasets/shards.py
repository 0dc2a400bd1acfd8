"""What is known of the shards of a data set, and how their files are told apart by name."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datasets.formats.array_files import check_field, field_name

_NUMBERED = re.compile(
    r"(?:(?P<field>[A-Za-z_]\w*?(?:\.[a-z]+)?)[-_.]?)?(?P<number>\d+(?:-of-\d+)?)"
)
FIELDS_NAME = "fields.txt"
UNNAMED = "array"
"""The field of files that are numbered and have no name."""


@dataclass(frozen=True, slots=True)
class Form:
    """Type and shape of the values of one field.

    Attributes:
        dtype: As NumPy writes it.
        shape: Shape of one value; empty for a number.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Files that hold the same samples.

    Attributes:
        name: What messages call it.
        count: Number of samples.
        places: Where each field lies, as its format knows it; plain values.
        forms: Type and shape of each field; None where they differ from sample to sample.
        size_bytes: Size of all samples.
    """

    name: str
    count: int
    places: dict[str, Any]
    forms: dict[str, Form | None]
    size_bytes: int

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Shard:
        """From JSON."""
        forms = {
            name: None if form is None else Form(form["dtype"], tuple(form["shape"]))
            for name, form in plain["forms"].items()
        }
        return cls(**{**plain, "forms": forms})


def group_by_shard(names: Sequence[str], *, where: str) -> dict[str, dict[str, int]]:
    """Which file holds which field of which shard, by their names.

    ``images_007.npy`` is the field ``image`` of the shard ``007``; so are ``images/007.npy`` and
    ``007/images.npy``. What has a number alone, ``007.npy``, is the field ``array``.

    Args:
        names: Paths below the data's folder.
        where: The storage, for messages.

    Returns:
        The number of the file by field, by shard; shards by folder and number.

    Raises:
        ValueError: Two files are the same field of a shard.
    """
    found: dict[tuple[str, int, str], dict[str, int]] = {}
    for at, name in enumerate(names):
        folder, base = os.path.split(name)
        stem = os.path.splitext(base)[0]
        match = _NUMBERED.fullmatch(stem)
        if match is None:
            shard, field = (folder, -1, ""), stem
        else:
            number = match["number"]
            shard, field = (folder, int(number.partition("-")[0]), number), match["field"]
            if field is None:
                above, field = os.path.split(folder)
                shard = (above, *shard[1:])
                field = field or UNNAMED
        field = field_name(field.partition(".")[0]) + "".join(field.partition(".")[1:])
        check_field(field.partition(".")[0], name, where=where, taken=("key",))
        files = found.setdefault(shard, {})
        if field in files:
            raise ValueError(
                f"{where}: {names[files[field]]} and {name} are both the field {field!r} of one "
                f"shard; rename one, or put it elsewhere"
            )
        files[field] = at
    return {
        "/".join(part for part in (folder, number) if part) or "": found[folder, order, number]
        for folder, order, number in sorted(found)
    }


def field_names(folder: str) -> frozenset[str]:
    """Fields that not all shards have: the lines of ``fields.txt`` in the data's folder."""
    path = os.path.join(folder, FIELDS_NAME)
    if not os.path.isfile(path):
        return frozenset()
    with open(path, encoding="utf-8") as file:
        return frozenset(file.read().split())


def check_shards(shards: Sequence[Shard], optional: Collection[str], *, where: str) -> None:
    """Raise ValueError if the shards do not have the same fields, or no sample at all.

    `optional` are fields that not all have to have.
    """
    if not sum(shard.count for shard in shards):
        raise ValueError(f"{where}: the arrays have no rows, expected one per sample")
    first = shards[0]
    for shard in shards:
        for name in first.forms.keys() ^ shard.forms.keys():
            if name in optional and name not in ("key", "label"):
                continue
            having, lacking = (first, shard) if name in first.forms else (shard, first)
            raise ValueError(
                f"{where}: {having.name} has the field {name!r} and {lacking.name} has not; "
                f"expected the same fields in all, such as images_000 and labels_000 beside "
                f"images_001 and labels_001"
            )
