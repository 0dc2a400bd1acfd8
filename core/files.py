"""Files that are there whole or not at all, locks on files, folders of this machine and process."""

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
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

_log = logging.getLogger(__name__)

# What the system says of a write that was right, and says without naming the file.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextlib.contextmanager
def whole_file(path: str | Path, *, alone: bool = False) -> Iterator[Path]:
    """Write a file beside `path` that gets its name when the block ends, on the disk and whole.

    Where the block fails, nothing is left of it and what was at `path` stays.

    Args:
        path: The file to make or to replace.
        alone: Nobody else writes to this path, so what a kill leaves behind always has the same
            name, and the next write takes its place.

    Yields:
        The file to write to, empty at first.
    """
    path = Path(path)
    ending = f"{path.name}.tmp" if alone else f".{path.name}.{secrets.token_hex(6)}"
    temporary = path.with_name(ending)
    # Not by mkstemp, so that the file gets the permissions of any other new file.
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
    """Write a file, whole or not at all.

    Args:
        path: The file.
        content: What is in it; or writes that to the binary file that it is given.
        alone: See `whole_file`.
    """
    with whole_file(path, alone=alone) as temporary, open(temporary, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)


def write_lines(path: str | Path, lines: Iterable[str | bytes]) -> None:
    """Write texts into a file, each on a line of its own, whole or not at all."""
    raw = (line.encode() if isinstance(line, str) else line for line in lines)
    write_whole(path, b"".join(line + b"\n" for line in raw))


@contextlib.contextmanager
def whole_folder(path: str | Path, *, prefix: str | None = None) -> Iterator[Path]:
    """Fill a folder beside `path` that gets its name when the block ends; see `rename_new`.

    Args:
        path: The folder to make.
        prefix: What the name begins with that it has before; null: one that says `path`.

    Yields:
        The folder to write to.
    """
    path = Path(path)
    start = f".{path.name}." if prefix is None else prefix
    temporary = path.with_name(start + secrets.token_hex(6))
    temporary.mkdir()
    try:
        yield temporary
        rename_new(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # made above, by this call
        raise


def rename_new(folder: Path, path: Path) -> None:
    """Give a folder its name, never over another one; an empty folder may stand there.

    Raises:
        FileExistsError: Something is at `path`.
    """
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        raise
    sync(path.parent)


def sync(path: str | Path) -> None:
    """Bring what was written to a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the machine's lock of a name: a file, made if need be, which may be removed at any time.

    On a file system without locks everybody goes on.
    """
    while True:
        with open(path, "ab") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not is_at(path, file.fileno()):
                continue
            try:
                yield
            finally:  # also in processes that were forked meanwhile
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
            return


def is_at(path: str | Path, descriptor: int) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def machine_folder(name: str) -> Path:
    """A folder of the machine's cache, made if it is not there.

    ``$XDG_CACHE_HOME/penstock/<name>`` or ``~/.cache/penstock/<name>``; where that cannot be
    written (no home, a read-only one), one of this user's in the temporary directory.

    Raises:
        ValueError: Another user has a folder of that name there.
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
    _log.warning("%s cannot be written: what is cached goes to %s", wanted, folder)
    return folder


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, remedy: str = "free some space") -> Iterator[None]:
    """Name what is written, where the system refuses a write.

    Libraries hide such a refusal behind errors of their own ("unexpected pos 704 vs 598"); it is
    looked for in what came before these.

    Args:
        path: What is written, a file or a folder.
        remedy: What the user can do.

    Raises:
        ValueError: The disk is full.
    """
    try:
        yield
    except Exception as error:
        refused: BaseException | None = error
        while refused is not None:
            if isinstance(refused, OSError) and refused.errno in _REFUSED:
                raise ValueError(
                    f"{path} cannot be written: {refused.strerror}; {remedy}"
                ) from error
            refused = refused.__cause__ or refused.__context__
        raise


_LOCK = "lock"
_SEMAPHORES = Path("/dev/shm")

_held: tuple[int, Path, IO[bytes]] | None = None


def own_folder() -> Path:
    """This process's folder. A lock tells that the process lives, and that no signal leaves behind.

    Its name begins those of the semaphores of multiprocessing, which it may leave behind as well.
    """
    global _held
    if _held is None or _held[0] != os.getpid():
        prefix = f"penstock-{os.getuid()}-"
        _remove_dead(prefix)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        lock = open(made / _LOCK, "wb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = made.with_name(made.name.removeprefix("."))  # not before it is locked
        made.rename(folder)
        _held = os.getpid(), folder, lock
        atexit.register(_remove, folder, os.getpid())
    return _held[1]


def _remove_dead(prefix: str) -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for semaphore in _SEMAPHORES.glob(f"sem.{lock.parent.name}-*"):
                semaphore.unlink(missing_ok=True)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not in a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
