"""Upload a folder to a URL; readers refuse it until it is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from penstock.core.files import write_whole
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import UNFINISHED, Client, Found, ask, read_place, side_by_side

_TOGETHER = 64


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
            f"{url} was begun with other data or settings; go on with those, or remove what is "
            f"there and begin anew"
        )


def upload_folder(
    folder: Path, url: str, *, sign: str, journal: Path, tell: Callable[[int], None]
) -> None:
    """Upload all files below a folder to a URL; resume an interrupted upload.

    During the upload, a file with the sign, which identifies the content, marks the URL and each
    first-level folder. Readers that list a marked folder refuse it. Keep the journal until the
    upload completes. `tell` receives the size in bytes of each uploaded file.
    """
    refuse_taken(url, sign)
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    marks = ["", *sorted({f"{name.partition('/')[0]}/" for name in files if "/" in name})]
    for mark in marks:
        ask(url, lambda c, name=mark + UNFINISHED: c.put(name, sign.encode()))  # type: ignore[misc]
    done: dict[str, list[str | int]] = json.loads(journal.read_text()) if journal.exists() else {}
    there = {each.name: _note(each) for each in ask(url, _listed)}
    missing = [name for name in files if name not in done or done[name] != there.get(name)]
    for name in files.keys() - set(missing):
        tell(files[name].stat().st_size)

    def copy(name: str) -> tuple[str, list[str | int]]:
        ask(url, lambda client: client.put(name, files[name]), name)
        tell(files[name].stat().st_size)
        return name, _note(ask(url, lambda client: client.head(name), name))

    for first in range(0, len(missing), _TOGETHER):
        done |= side_by_side(copy, missing[first : first + _TOGETHER])
        write_whole(journal, json.dumps(done))
    for mark in reversed(marks):
        ask(url, lambda c, name=mark + UNFINISHED: c.delete(name))  # type: ignore[misc]


def _listed(client: Client) -> list[Found]:
    return list(client.files())


def _note(found: Found) -> list[str | int]:
    return [found.size_bytes, found.mark]
