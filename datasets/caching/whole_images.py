"""Records whose image is decoded before it is kept: for ``what=decoded``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from datasets.sample import Record

if TYPE_CHECKING:
    from datasets.protocols import Decoder

_REST = "*"


class WholeImages:
    """Decodes the field of a record that the decoder will take as its image, and leaves the rest.

    What comes out is still a record: decoders pass on pixels, crops of them too.

    Args:
        decode: The decoder of the data set.
        keys: Fields renamed, picked or dropped before decoding.

    Raises:
        ValueError: The decoder's pixels are not those of the whole image.
    """

    def __init__(self, decode: Decoder | None, keys: Mapping[str, str | None] | None) -> None:
        if not getattr(decode, "parts_are_exact", False):
            raise ValueError(
                f"dataset.cache.what: decoded given, but what {type(decode).__name__} decodes "
                f"depends on more than the image, or is not known to be pixels; use "
                f"dataset.cache.what=encoded or dataset/decode=image"
            )
        self._decode: Any = decode
        self.field = _image_field(dict(keys or {}))

    def __call__(self, record: Record) -> Record:
        """The record, its image uint8 [H, W, C]; as it is if it is pixels, or damaged."""
        image = None if self.field is None else record.fields.get(self.field)
        if image is None or hasattr(image, "dtype"):
            return record
        try:
            pixels = self._decode.decode(image)
        except ValueError:
            # A crop may leave the damage out: that is for the decoder to find, as without a cache.
            return record
        assert self.field is not None
        return replace(record, fields={**record.fields, self.field: pixels})

    @property
    def recipe(self) -> list[str]:
        """What its pixels depend on, beside the file."""
        from importlib.metadata import PackageNotFoundError, version

        settings = [f"{name}={value!r}" for name, value in sorted(vars(self._decode).items())]
        libraries = []
        for name in ("simplejpeg", "opencv-python-headless"):
            try:
                libraries.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue
        return [type(self._decode).__qualname__, str(self.field), *settings, *libraries]


def _image_field(keys: dict[str, str | None]) -> str | None:
    """The field that is called ``image`` after renaming; None: no field is."""
    for name, new_name in keys.items():
        if new_name == "image":
            return name
    return None if "image" in keys or _REST in keys else "image"
