"""Copy remote files to this machine, for formats that need local files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.core.files import machine_folder, whole_folder
from penstock.core.machine_cache import computed_once, signature_of
from penstock.datasets.files.access import (
    MissingFile,
    RangeFile,
    absolute_path,
    expand_braces,
)
from penstock.datasets.files.clients import AccessDenied, Found, side_by_side
from penstock.datasets.files.data_files import find_data_files
from penstock.datasets.files.remote import read_url

_AT_ONCE_BYTES = 64 << 20
_SMALL_BYTES = 4 << 20
"""Copy several files up to this size in parallel, and larger files in parallel pieces."""

copied_urls: dict[str, str] = {}
"""URLs by the path of this process's copy."""


def local_copy(url: str) -> str:
    """Copy a file, or all files below a URL or pattern, to the cache; return the copy's path."""
    url = absolute_path(url)
    found = find_data_files(url, endings=("",), where="copy")
    marks = zip(found.names, found.marks, strict=True)
    files = [Found(name, size, str(mark)) for name, (size, mark) in marks]

    def copy(file: Found) -> tuple[str, str]:
        return file.name, str(copy_file(f"{found.root}/{file.name}", file))

    small = [file for file in files if file.size_bytes <= _SMALL_BYTES]
    copies = dict(side_by_side(copy, small))
    copies |= dict(copy(file) for file in files if file.size_bytes > _SMALL_BYTES)
    path = copies.get(url[len(found.root) + 1 :]) or _linked(url, found.root, copies)
    copied_urls[path] = url
    return path


def _linked(url: str, root: str, copies: dict[str, str]) -> str:
    """Return a folder with links to the copies."""
    folder = machine_folder("remote") / signature_of(url=url, files=copies) / os.path.basename(root)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), whole_folder(folder) as temporary:
        for name, path in copies.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).symlink_to(path)
    return str(folder)


def hub_copy(url: str) -> str:
    """Copy the files that an ``hf://`` URL names to the hub's own cache; return their path."""
    try:
        from huggingface_hub import HfFileSystem, snapshot_download

        place = HfFileSystem().resolve_path(url)
        names = [f"{name}*" for name in expand_braces(place.path_in_repo)]
        about = {"repo_type": place.repo_type, "revision": place.revision}
        folder = snapshot_download(place.repo_id, allow_patterns=names, **about)
    except Exception as error:  # the package is missing, or the hub refuses
        said = str(error).strip().partition("\n")[0]
        needs = "expected hf://datasets/OWNER/NAME, the extra hub, and HF_TOKEN for private data"
        raise ValueError(f"{url}: {said}; {needs}") from error
    return os.path.join(folder, place.path_in_repo)


def copy_again(url: str, path: str) -> None:
    """Copy a URL to the path of another machine's copy; ValueError if the path would differ."""
    if (found := local_copy(url)) != path:
        raise ValueError(
            f"{url} was copied to {path}, here to {found}; start Ray with the same XDG_CACHE_HOME "
            f"on every machine, and anew if the data was changed"
        )


def fetch_files(url: str, names: Iterable[str], folder: Path) -> None:
    """Copy small files below a URL into a folder; skip missing and denied files."""

    def fetch(name: str) -> None:
        with contextlib.suppress(MissingFile, AccessDenied):
            content = read_url(f"{url}/{name}", root=url)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    side_by_side(fetch, list(names))


def copy_file(url: str, found: Found) -> Path:
    """Copy the file `found` to this machine's cache; see `local_copy`."""
    file = RangeFile(url, mark=(found.size_bytes, found.mark))

    def download(path: Path) -> None:
        with open(path, "wb") as copy:
            for start in range(0, found.size_bytes, _AT_ONCE_BYTES):
                size = min(_AT_ONCE_BYTES, found.size_bytes - start)
                copy.write(file.read(start, size))

    sign = signature_of(url=url, mark=found.mark, size=found.size_bytes)
    ending = Path(url).suffix
    path, _ = computed_once(
        f"copy-{sign}", ending, make=download, load=lambda path: path, what=f"copy of {url}"
    )
    return path
