"""Keep a packing in a hidden folder, which one process holds, until it takes its place."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from penstock.core.files import is_at, rename_new, sync, write_whole
from penstock.pipeline.packing.verify import check_made

_WAIT_FOR_WORKERS_S = 30.0


class Staging:
    """The folder beside `target` in which it grows, held by one process at a time.

    Args:
        target: The folder to make.
        recipe: What decides about the result, by name; JSON. A packing that was begun with
            another one is not gone on with.
        overwrite: What packing made at `target` may be replaced.

    Raises:
        ValueError: Something else is at `target`, another process packs there, or what was
            begun there is another packing.
    """

    def __init__(self, target: Path, recipe: dict[str, Any], *, overwrite: bool) -> None:
        self.target = target
        self.folder = target.parent / f".{target.name}.packing"
        self.result = self.folder / "result"
        self.journal = self.folder / "journal"
        self.workers_lock = self.folder / "workers.lock"
        self._overwrite = overwrite
        self._recipe = json.loads(json.dumps(recipe))
        self._lock = -1

    def __enter__(self) -> Staging:
        self._refuse_place()
        begun = self.folder.exists()
        if not begun:
            self._refuse_target()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._enter()
        try:
            if self._took_its_place():
                self.give_up()
                self._enter()
            self._refuse_target()
            self._refuse_other_recipe()
            self.result.mkdir(exist_ok=True)
            sync(self.folder)
        except BaseException:
            self.release() if begun else self.give_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let others go on."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def is_begun(self) -> bool:
        """Whether some of it is there from another time."""
        return self.journal.exists()

    @property
    def has_parts(self) -> bool:
        """Whether a part is written that can be gone on with."""
        return any(self.journal.glob("*/*"))

    def publish(self) -> None:
        """Let the result take its place, whole; what stood there goes after that."""
        for folder in (*sorted(p for p in self.result.rglob("*") if p.is_dir()), self.result):
            sync(folder)
        _open_to_all(self.result)
        if self._holds_something():
            self._refuse_target()
            before = self.folder / "replaced"  # there where one was killed that was in place
            shutil.rmtree(before, ignore_errors=True)
            os.rename(self.target, before)
        try:
            rename_new(self.result, self.target)
        except OSError as error:
            reason = f"{self.target} cannot be made: {error.strerror}"
            raise ValueError(f"pack.path: {reason}") from error
        self.give_up()

    def _refuse_place(self) -> None:
        """Refuse what cannot be written to before anything is made."""
        if self.target.is_file() or self.target.is_symlink():
            raise ValueError(f"pack.path: {self.target} is a file or a link; name a new folder")
        if os.path.ismount(self.target):
            raise ValueError(
                f"pack.path: {self.target} is a mount point, which no folder can replace; name a "
                f"folder in it"
            )

    def _refuse_target(self) -> None:
        if not self._holds_something():
            return
        if not self._overwrite:
            raise ValueError(
                f"pack.path: {self.target} exists already; name a folder that does not, or give "
                f"pack.overwrite=true to replace what pack has made"
            )
        check_made(self.target)

    def _holds_something(self) -> bool:
        return self.target.is_dir() and any(self.target.iterdir())

    def _enter(self) -> None:
        """Make the folder and hold its lock."""
        while True:
            self.folder.mkdir(exist_ok=True)
            path = self.folder / "lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(self._lock):
                self.release()
                raise ValueError(
                    f"pack.path: another process is packing {self.target}; wait for it, or end it"
                )
            if is_at(path, self._lock):
                break
            self.release()  # it was removed by who held it
        self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        """Workers of a packer that was killed end by themselves; until then they write."""
        descriptor = os.open(self.workers_lock, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _WAIT_FOR_WORKERS_S
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                os.close(descriptor)
                self.release()
                raise ValueError(
                    f"pack.path: processes of an earlier run still write to {self.folder}; end them"
                )
            time.sleep(0.05)
        os.close(descriptor)

    def _took_its_place(self) -> bool:
        """Whether the result stands already, and only its journal is left here."""
        return self.is_begun and not self.result.exists()

    def _refuse_other_recipe(self) -> None:
        path = self.folder / "recipe.json"
        try:
            begun = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            write_whole(path, json.dumps(self._recipe, indent=1))
            return
        for name in {**begun, **self._recipe}:
            before, now = begun.get(name), self._recipe.get(name)
            if before != now:
                raise ValueError(
                    f"pack.path: {self.target} was begun with {name} {before!r}, now it is "
                    f"{now!r}; give what it was begun with, or begin anew: rm -r {self.folder}"
                )

    def give_up(self) -> None:
        """Take everything away that was begun: the folder, all of which was made here."""
        shutil.rmtree(self.folder)
        self.release()


def _locked(descriptor: int) -> bool:
    """Whether nobody else has the lock of an open file, which is then held."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _open_to_all(folder: Path) -> None:
    """Give what temporary files were made of the permissions that new files get."""
    mask = os.umask(0o077)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
