"""Upload a folder to a URL; readers refuse it until it is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import UNFINISHED, ask, read_place, side_by_side


def refuse_taken(url: str, sign: str) -> None:
    """Raise ValueError for a URL with content, unless an upload with the same sign began it."""
    there = ask(url, lambda client: next(iter(client.files()), None))
    if there is None:
        return
    try:
        begun = read_place(url, UNFINISHED, 0, 1 << 10).content
    except MissingFile:
        raise ValueError(
            f"{url} holds {there.name} already; name a place where nothing is, or remove that"
        ) from None
    if begun != sign.encode():
        raise ValueError(
            f"{url} was begun with other data or settings; resume with those, or remove what is "
            f"there and begin anew"
        )


def upload_folder(folder: Path, url: str, *, sign: str, tell: Callable[[int], None]) -> None:
    """Upload all files below a folder to a URL; skip files that are there at their size.

    During the upload, a file with the sign, which identifies the content, marks the URL and each
    first-level folder. Readers that list a marked folder refuse it. `tell` receives the size in
    bytes of each uploaded file.
    """
    refuse_taken(url, sign)
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    marks = ["", *sorted({f"{name.partition('/')[0]}/" for name in files if "/" in name})]
    for mark in marks:
        ask(url, lambda c, name=mark + UNFINISHED: c.put(name, sign.encode()))  # type: ignore[misc]
    there = {each.name: each.size_bytes for each in ask(url, lambda c: list(c.files()))}

    def copy(name: str) -> None:
        size_bytes = files[name].stat().st_size
        if there.get(name) != size_bytes:
            ask(url, lambda client: client.put(name, files[name]), name)
        tell(size_bytes)

    side_by_side(copy, list(files))
    for mark in reversed(marks):
        ask(url, lambda c, name=mark + UNFINISHED: c.delete(name))  # type: ignore[misc]
