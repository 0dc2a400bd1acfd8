"""Keep a run's folder at a URL: claimed for one process, and copied while that writes it here."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from penstock.core.files import machine_folder
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import Client, RemoteError, ask, begin, read_place, result_of
from penstock.datasets.files.local_copies import fetch_files
from penstock.datasets.files.remote import list_files
from penstock.pipeline.config.saved import SAVED

_log = logging.getLogger(__name__)

MARK = ".running"
"""Lies at the URL while a process trains there: whose run it is, and when that was last said."""
SUMMARY = "summary.json"
_LAST, _BEST = "checkpoints/last.pt", "checkpoints/best.pt"
_LOOK_S = 1.0
_AGAIN_S = 10.0
_FIGURES_S = 30.0
"""Between copies of what is no checkpoint, while there is no new one."""
_BEAT_S = 5.0
_SILENT_S = 20.0
"""A process that has not said for so long that it lives was killed."""
_PATIENCE_S = 120.0
"""What the end of a run gives a store that takes nothing; after a signal, all of the copying."""

_State = tuple[int, int, int] | None


class TakenOver(ExplainedError):
    """Another process has gone on with the run."""


class RunCopy:
    """The copy of a run's folder at a URL, kept up to date by a thread.

    A checkpoint is copied when there is a new one: the newest, if several were saved meanwhile.
    What lies beside it goes first, so that whatever is at the URL can be gone on with. Trouble is
    met by more tries, and training goes on.

    Args:
        folder: What is copied.
        url: Where to, claimed by `claim_new` or `claim_again`.
        owner: Whose the mark there is.
        known: What is there: by name, the state of the file here that it is a copy of.

    Attributes:
        lost: Whether another process has taken over; nothing is copied any more.
    """

    def __init__(self, folder: Path, url: str, owner: str, known: Mapping[str, _State]) -> None:
        self.folder, self.url, self.lost = folder, url, False
        self._owner, self._known = owner, dict(known)
        self._asked, self._done, self._ended, self._gave_up = 0, 0, False, False
        self._trouble: Exception | None = None
        self._troubled_s = self._beat_s = self._figures_s = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="copy of the run", daemon=True)
        self._thread.start()

    def flush(self, *, hurry: bool) -> None:
        """Wait until all that is in the folder now is at the URL.

        Args:
            hurry: For `_PATIENCE_S` at most; else as long as the store takes what it is given.

        Raises:
            ExplainedError: It is not there, or another process has taken over.
        """
        self._asked += 1
        wanted, began_s = self._asked, time.monotonic()
        self._wake.set()
        told = False
        while self._done < wanted:
            waited_s = time.monotonic() - began_s
            if self.lost:
                self._gave_up = True
                raise TakenOver(
                    f"{self.url}: another process has gone on with this run, or removed it; this "
                    f"one ends, and what it has lies in {self.folder}"
                )
            failing_s = time.monotonic() - max(self._troubled_s, began_s) if self._trouble else 0.0
            if failing_s > _PATIENCE_S or (hurry and waited_s > _PATIENCE_S):
                self._gave_up = True
                why = self._trouble or f"not copied within {_PATIENCE_S:.0f} s"
                raise ExplainedError(
                    f"{self.url} lacks what was saved last: {why}; it lies in {self.folder}, and "
                    f"on this machine trainer.resume={self.url} copies it and goes on"
                )
            if waited_s > 2 * _LOOK_S and not told:
                _log.info("copying what was saved, in %s, to %s ...", self.folder, self.url)
                told = True
            time.sleep(0.02)

    def close(self) -> None:
        """End the copying; what is copied is removed here, and others may have the run."""
        try:
            if not self._gave_up:
                with _undisturbed():
                    self.flush(hurry=True)
        except ExplainedError as error:
            _log.error("%s", error)
        finally:
            self._ended = True
            self._wake.set()
        if self._gave_up:
            return
        self._thread.join()
        with suppress(RemoteError):
            ask(self.url, partial(_delete, name=MARK), MARK)
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _work(self) -> None:
        while not self._ended:
            wanted = self._asked
            try:
                self._copy(everything=wanted > self._done)
            except TakenOver:
                self.lost = True
                return
            except Exception as error:  # whatever a store may say: training goes on
                if self._trouble is None:
                    self._troubled_s = time.monotonic()
                    _log.warning("nothing is copied for now, and it is tried again: %s", error)
                self._trouble = error
            else:
                if self._trouble is not None:
                    _log.info("copied to %s again", self.url)
                self._trouble, self._done = None, wanted
            self._wake.wait(_LOOK_S if self._trouble is None else _AGAIN_S)
            self._wake.clear()

    def _copy(self, *, everything: bool) -> None:
        self._tell_alive(at_once=everything)
        if not (self.folder / SAVED).exists():
            return  # it has not begun
        with ExitStack() as stack:
            # A `last` whose score counts as the best must find that one kept: it is held first.
            held = {
                name: link
                for name in (_LAST, _BEST)
                if (link := self._held(name, stack)) is not None
            }
            if not (everything or held or time.monotonic() > self._figures_s):
                return
            self._put_changed(self._names())
            for name, link in reversed(held.items()):
                self._put(name, link)
                self._known[name] = _state_of(link)
        # Whoever reads that a run is finished finds its last checkpoint there.
        self._put_changed([SUMMARY])
        if SUMMARY in self._known and not (self.folder / SUMMARY).exists():  # it goes on
            ask(self.url, partial(_delete, name=SUMMARY), SUMMARY)
            del self._known[SUMMARY]
        self._figures_s = time.monotonic() + _FIGURES_S

    def _names(self) -> list[str]:
        """List what is to be copied before the checkpoints."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(self.folder).as_posix() for path in files]
        names = [name for name in names if "/." not in f"/{name}" and not name.endswith(".tmp")]
        return [name for name in names if not name.startswith("checkpoints/") and name != SUMMARY]

    def _put_changed(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                if (state := self._state(name)) != self._known.get(name):
                    self._put(name, (self.folder / name).read_bytes())
                    self._known[name] = state

    def _state(self, name: str) -> _State:
        return _state_of(self.folder / name)

    def _held(self, name: str, stack: ExitStack) -> Path | None:
        """Keep a checkpoint that is not yet there from going when the next one is saved."""
        with suppress(FileNotFoundError):
            if self._state(name) != self._known.get(name):
                link = self.folder / f".{Path(name).name}"
                link.unlink(missing_ok=True)
                os.link(self.folder / name, link)
                stack.callback(link.unlink, missing_ok=True)
                return link
        return None

    def _put(self, name: str, content: Path | bytes) -> None:
        def put(client: Client) -> None:
            client.put(name, content)

        putting = begin(lambda: ask(self.url, put, name))
        while not wait([putting], _BEAT_S).done:
            with suppress(RemoteError):
                self._tell_alive()
        result_of(putting)

    def _tell_alive(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() > self._beat_s:
            if _owner_of(_mark_at(self.url)) != self._owner:
                raise TakenOver
            ask(self.url, partial(_put_mark, owner=self._owner), MARK)
            self._beat_s = time.monotonic() + _BEAT_S


def claim_new(url: str) -> RunCopy | None:
    """Claim a URL for a new run; None: something is there.

    Raises:
        RemoteError: It cannot be written to.
    """
    if ask(url, lambda client: next(iter(client.files()), None)) is not None:
        return None
    owner = secrets.token_hex(8)
    try:
        ask(url, partial(_put_mark, owner=owner, new=True), MARK)
    except FileExistsError:
        if _owner_of(_mark_at(url)) != owner:  # else the first answer was lost on the way
            return None
    folder = _folder_of(url, owner)
    folder.mkdir(parents=True)
    return RunCopy(folder, url, owner, {})


def claim_again(url: str, *, is_free: Callable[[Path], bool]) -> RunCopy | None:
    """Claim a run that is at a URL, to go on with it; None: another process is training in it.

    What a process that was killed on this machine has not copied is copied first.

    Args:
        url: The run.
        is_free: Whether no process of this machine has a folder.

    Raises:
        ExplainedError: It cannot be read or written.
    """
    mark = _mark_at(url)
    files = [found.name for found in list_files(url)]
    if mark is not None and (folder := _folder_of(url, _owner_of(mark))).is_dir():
        if not is_free(folder):
            return None
        last = folder / _LAST
        if not last.exists() and (before := last.with_name("previous.pt")).exists():
            os.replace(before, last)  # killed between the two renames of a new checkpoint
        both = [name for name in files if (folder / name).exists()]
        copy = RunCopy(folder, url, _owner_of(mark), dict.fromkeys(both))
        copy.flush(hurry=False)
        return copy
    if mark is not None:
        _log.info("looking whether a process still trains in %s ...", url)
        if not _falls_silent(url, mark):
            return None
    owner = secrets.token_hex(8)
    folder = _folder_of(url, owner)
    folder.mkdir(parents=True)
    wanted = [name for name in files if name != MARK and not name.startswith("checkpoints/")]
    fetch_files(url, [name for name in wanted if ".." not in name.split("/")], folder)
    ask(url, partial(_put_mark, owner=owner), MARK)
    known = {name: _state_of(folder / name) for name in wanted if (folder / name).exists()}
    return RunCopy(folder, url, owner, known)


def is_alive(mark: Path) -> bool:
    """Whether a copy of the mark of a run says that a process trains there, by the clocks."""
    try:
        return time.time() - json.loads(mark.read_text())["time"] < 3 * _SILENT_S
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _falls_silent(url: str, mark: bytes) -> bool:
    """Wait for whoever has a run: whether it has ended, or says nothing for `_SILENT_S`."""
    until_s = time.monotonic() + _SILENT_S
    while time.monotonic() < until_s:
        time.sleep(min(_LOOK_S, _SILENT_S / 4))
        if (now := _mark_at(url)) != mark:
            return now is None
    return True


def _folder_of(url: str, owner: str) -> Path:
    return machine_folder("runs") / owner / url.rpartition("/")[2]


def _mark_at(url: str) -> bytes | None:
    try:
        return read_place(url, MARK, 0, 1 << 10)[0]
    except MissingFile:
        return None


def _owner_of(mark: bytes | None) -> str:
    """Read whose a mark is; one that is damaged, or none, is nobody's."""
    try:
        owner = json.loads(mark or b"")["owner"]
    except (ValueError, KeyError, TypeError):
        return "nobody"
    return owner if isinstance(owner, str) and owner.isalnum() else "nobody"


def _put_mark(client: Client, *, owner: str, new: bool = False) -> None:
    client.put(MARK, json.dumps({"owner": owner, "time": time.time()}).encode(), new=new)


def _delete(client: Client, *, name: str) -> None:
    with suppress(FileNotFoundError):
        client.delete(name)


def _state_of(path: Path) -> _State:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep SIGTERM off, which torchrun sends to ranks that are left where one has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
