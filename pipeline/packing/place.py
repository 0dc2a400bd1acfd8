"""Where a packing goes: a folder, or a URL that it is copied to once it is whole here."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.files import machine_folder
from penstock.core.machine_cache import signature_of
from penstock.datasets.files.access import absolute_path, is_url
from penstock.pipeline.packing.report import Screen, folder_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a packing goes.

    Attributes:
        folder: The folder to make; of a URL, one in the machine's cache.
        url: The URL, or None.
        sign: Of a URL: tells this packing from any other there.
    """

    folder: Path
    url: str | None = None
    sign: str = ""

    @classmethod
    def of(cls, path: str, recipe: Mapping[str, Any], *, overwrite: bool) -> Place:
        """Make the place of a path.

        Raises:
            ValueError: It is a URL where something is, or of a kind that is not written to.
        """
        if not is_url(path):
            folder = Path(path).expanduser()
            # A hidden folder of its name grows beside it.
            return cls(folder.resolve() if folder.name in ("", "..") else folder)
        from penstock.datasets.files.uploads import refuse_taken

        url = absolute_path(path).rstrip("/")
        if overwrite:
            raise ValueError(
                f"pack.overwrite: nothing is removed from {url}; remove it yourself, or name a new "
                f"place, and leave pack.overwrite away"
            )
        if url.startswith("http"):
            raise ValueError(
                f"pack.path: {url} is on a web server, which takes no files; name a folder, or an "
                f"object store's s3://, gs:// or az://"
            )
        sign = signature_of(url=url, recipe=recipe)
        refuse_taken(url, sign)
        name = url.rpartition("/")[2]
        return cls(machine_folder("packing") / sign / name, url, sign)

    def __str__(self) -> str:
        return self.url or str(self.folder)

    @property
    def is_packed(self) -> bool:
        """Whether the folder of a URL is whole, and was not copied to the end."""
        return self.url is not None and self.folder.is_dir()

    def finish(self) -> None:
        """Copy the folder to its URL, if it has one, and remove it here."""
        if self.url is None:
            return
        from penstock.datasets.files.uploads import upload_folder

        files = [path for path in self.folder.rglob("*") if path.is_file()]
        try:
            with Screen("copying", len(files), of="files") as screen:
                upload_folder(
                    self.folder,
                    self.url,
                    sign=self.sign,
                    journal=self.folder.parent / "copied.json",
                    tell=lambda size_bytes: screen.add(1, size_bytes),
                )
            size = folder_bytes(self.folder)
        except BaseException:
            print(f"what is packed is kept in {self.folder.parent}; the same command goes on")
            raise
        shutil.rmtree(self.folder.parent)
        print(f"copied to {self.url}: {size / 1e6:,.1f} MB")
