"""Where a preview is written: only over an earlier one, and whole or not at all."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from pathlib import Path

HTML_MARK = "<!-- a preview by penstock -->"
_PNG_MARK = b"Software\x00penstock preview"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_HEADER_END = len(_PNG_START) + 25  # IHDR always comes first and is always so long
_LOOKED_AT = 4096


def targets(path: str) -> tuple[Path, Path]:
    """The PNG and the HTML page that a path names: one beside the other.

    Raises:
        ValueError: It names another kind of file, or a folder.
    """
    given = Path(path).expanduser()
    if given.suffix.lower() not in (".png", ".html"):
        raise ValueError(
            f"preview.path is {path!r}, expected a file name that ends in .png (the page beside "
            f"it ends in .html)"
        )
    return given.with_suffix(".png"), given.with_suffix(".html")


def check_free(paths: tuple[Path, ...], *, overwrite: bool) -> None:
    """Refuse to write over what is no preview.

    Raises:
        ValueError: There is a file that is none, and `overwrite` is off; or there is a folder.
    """
    for path in paths:
        if path.is_dir():
            raise ValueError(f"preview.path: {path} is a folder; name a file")
        if os.path.lexists(path) and not overwrite and not _is_ours(path):
            raise ValueError(
                f"preview.path: {path} exists and is no preview; choose another path, or set "
                f"preview.overwrite=true"
            )


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        start = file.read(_LOOKED_AT)
    return _PNG_MARK in start[_HEADER_END:] or HTML_MARK.encode() in start


def marked_png(png: bytes) -> bytes:
    """A PNG that says who made it, in a chunk ``tEXt`` (PNG, third edition, 11.3.3.2)."""
    assert png.startswith(_PNG_START)
    content = b"tEXt" + _PNG_MARK
    chunk = struct.pack(">I", len(_PNG_MARK)) + content + struct.pack(">I", zlib.crc32(content))
    return png[:_HEADER_END] + chunk + png[_HEADER_END:]


def write_all(contents: dict[Path, bytes]) -> None:
    """Write files, each of them whole; none where one cannot be written.

    Raises:
        ValueError: One cannot be written.
    """
    written: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            written[path] = name
            with open(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o666 & ~_umask())
        for path, name in list(written.items()):
            os.replace(name, path)
            del written[path]
    except OSError as error:
        raise ValueError(
            f"preview.path: {path} cannot be written: {error.strerror}; choose another path"
        ) from error
    finally:
        for name in written.values():
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
