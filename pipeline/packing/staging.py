"""The hidden folder in which a packing grows, until it takes the place it is for."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from datasets.index import write_whole
from datasets.writing import rename_new, sync_folder, umask
from pipeline.packing.journal import Journal
from pipeline.packing.made import check_made

_WAIT_FOR_WORKERS_S = 30.0
_EXCHANGE = 2
_AT_CWD = -100


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
                self._remove()
                self._enter()
            self._refuse_target()
            self._refuse_other_recipe()
            self.result.mkdir(exist_ok=True)
            sync_folder(self.folder)
        except BaseException:
            self.release() if begun else self._remove()
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
        return (self.folder / "journal").exists()

    @property
    def has_parts(self) -> bool:
        """Whether a part is written that can be gone on with."""
        return any((self.folder / "journal").glob("*/*"))

    def journal(self, split: str) -> Journal:
        """What of a split is done."""
        return Journal(self.folder / "journal" / split)

    def publish(self) -> None:
        """Let the result take its place, whole; what stood there goes after that."""
        for folder in (*sorted(p for p in self.result.rglob("*") if p.is_dir()), self.result):
            sync_folder(folder)
        _open_to_all(self.result)
        if self._holds_something():
            self._refuse_target()
            number = b"%d" % self.result.stat().st_ino
            write_whole(self.folder / "replaces", lambda file: file.write(number))
            _exchange(self.result, self.target)
            sync_folder(self.target.parent)
        else:
            _rename(self.result, self.target)
        self._remove()

    def give_up(self) -> None:
        """Take everything away that was begun."""
        self._remove()

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
            if not _locked(self._lock, fcntl.LOCK_EX):
                self.release()
                raise ValueError(
                    f"pack.path: another process is packing {self.target}; wait for it, or end it"
                )
            if path.exists() and os.path.samestat(os.fstat(self._lock), path.stat()):
                break
            self.release()  # it was removed by who held it
        self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        """Workers of a packer that was killed end by themselves; until then they write."""
        descriptor = os.open(self.workers_lock, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _WAIT_FOR_WORKERS_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(descriptor)
                self.release()
                raise ValueError(
                    f"pack.path: processes of an earlier run still write to {self.folder}; end them"
                )
            time.sleep(0.05)
        os.close(descriptor)

    def _took_its_place(self) -> bool:
        """Whether the result stands already, and only what it replaced is left here."""
        try:
            number = int((self.folder / "replaces").read_text())
        except (FileNotFoundError, ValueError):
            return False
        return self.target.exists() and self.target.stat().st_ino == number

    def _refuse_other_recipe(self) -> None:
        path = self.folder / "recipe.json"
        try:
            begun = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            text = json.dumps(self._recipe, indent=1).encode()
            write_whole(path, lambda file: file.write(text))
            return
        other = [k for k in {**begun, **self._recipe} if begun.get(k) != self._recipe.get(k)]
        if other:
            name = other[0]
            raise ValueError(
                f"pack.path: {self.target} was begun with {name} {begun.get(name)!r}, now it is "
                f"{self._recipe.get(name)!r}; give what it was begun with, or begin anew: rm -r "
                f"{self.folder}"
            )

    def _remove(self) -> None:
        """Remove the folder, all of which was made here."""
        shutil.rmtree(self.folder)
        self.release()


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _rename(folder: Path, path: Path) -> None:
    try:
        rename_new(folder, path)
    except OSError as error:
        raise ValueError(f"pack.path: {path} cannot be made: {error.strerror}") from error


def _open_to_all(folder: Path) -> None:
    """Give what temporary files were made of the permissions that new files get."""
    mask = umask()
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change places in one step (renameat2(2), Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renameat2", None)
    done = call and call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0
    if done:
        return
    number = ctypes.get_errno() if call else errno.ENOSYS
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), str(other))
    # Without it there is a moment in which the old one stands beside.
    aside = one.with_name("replaced")
    os.rename(other, aside)
    os.rename(one, other)
