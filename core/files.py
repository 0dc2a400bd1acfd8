"""Atomic writes of files and folders, file locks, and the folders of a machine and a process."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core.user_errors import DiskError

_log = logging.getLogger(__name__)

# Errors of a full, limited or read-only disk; the system does not name the file.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextlib.contextmanager
def whole_file(path: str | Path, *, alone: bool = False) -> Iterator[Path]:
    """Yield an empty file next to `path`, and sync and rename it to `path` when the block ends.

    If the block fails, `path` is unchanged. With `alone`, no other process writes to `path`; the
    temporary name is then fixed, so a write after a kill reuses it.
    """
    path = Path(path)
    ending = f"{path.name}.tmp" if alone else f".{path.name}.{secrets.token_hex(6)}"
    temporary = path.with_name(ending)
    # mkstemp would deny access to other users, whatever the umask.
    os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666))
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(
    path: str | Path, content: bytes | str | Callable[[Any], object], *, alone: bool = False
) -> None:
    """Write a file atomically; a callable `content` writes to the open binary file."""
    with whole_file(path, alone=alone) as temporary, open(temporary, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)


def write_lines(path: str | Path, lines: Iterable[str | bytes]) -> None:
    """Write texts to a file atomically, one on each line."""
    raw = (line.encode() if isinstance(line, str) else line for line in lines)
    write_whole(path, b"".join(line + b"\n" for line in raw))


@contextlib.contextmanager
def whole_folder(path: str | Path, *, prefix: str | None = None) -> Iterator[Path]:
    """Yield a new folder next to `path`, renamed to `path` by `rename_new` at the end."""
    path = Path(path)
    start = f".{path.name}." if prefix is None else prefix
    temporary = path.with_name(start + secrets.token_hex(6))
    temporary.mkdir()
    try:
        yield temporary
        rename_new(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def rename_new(folder: Path, path: Path) -> None:
    """Rename a folder to `path`; raise FileExistsError unless `path` is free or an empty folder."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        raise
    sync(path.parent)


def sync(path: str | Path) -> None:
    """Flush a file's content, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which may be removed; no lock where there are none."""
    while True:
        with open(path, "ab") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not is_at(path, file.fileno()):
                continue
            try:
                yield
            finally:  # unlock, since forked processes share the lock
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
            return


def is_at(path: str | Path, descriptor: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def machine_folder(name: str) -> Path:
    """Return a folder of the machine's cache, created if missing.

    It is ``$XDG_CACHE_HOME/penstock/<name>`` or ``~/.cache/penstock/<name>``, or a folder of the
    user in the temporary directory if these are not writable.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "penstock" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    folder = _temporary_folder(str(folder.parent)) / name
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _temporary_folder(wanted: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(f"{folder} belongs to another user; set XDG_CACHE_HOME")
    _log.warning("%s cannot be written; the cache is in %s", wanted, folder)
    return folder


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, remedy: str = "free some space") -> Iterator[None]:
    """Raise a DiskError with `path` and `remedy` if the system refuses a write in the block.

    Some libraries hide the system's error behind their own, so search the chain of exceptions.
    """
    try:
        yield
    except Exception as error:
        refused: BaseException | None = error
        while refused is not None:
            if isinstance(refused, OSError) and refused.errno in _REFUSED:
                raise DiskError(
                    f"{path} cannot be written: {refused.strerror}; {remedy}"
                ) from error
            refused = refused.__cause__ or refused.__context__
        raise


@cache
def own_folder() -> Path:
    """Return the temporary folder of this process and its forks, removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)
