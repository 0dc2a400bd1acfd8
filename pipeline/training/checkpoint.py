"""Checkpoints that are whole or not there, and are known to be damaged before they are used."""

from __future__ import annotations

import logging
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

_log = logging.getLogger(__name__)

FORMAT = 1


class CheckpointFolder:
    """The checkpoints of a run: ``last.pt``, the one before it, ``previous.pt``, and ``best.pt``.

    Args:
        folder: Made with the first checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._proved = False
        self._wrote = False

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "last.pt"

    @property
    def best(self) -> Path:
        """The one with the best score."""
        return self.folder / "best.pt"

    @property
    def previous(self) -> Path:
        """The one before the newest."""
        return self.folder / "previous.pt"

    def exists(self) -> bool:
        """Whether there is a checkpoint, damaged or not."""
        return self.last.exists() or self.previous.exists()

    def save(self, content: dict[str, Any], *, best: bool) -> None:
        """Write the newest checkpoint, which becomes the best one too if `best`.

        A kill at any moment leaves `last` or `previous` whole.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary, copy = self.folder / "last.pt.tmp", self.folder / "best.pt.tmp"
        try:
            self._save(content, temporary, copy if best else None)
        except BaseException:
            for left in (temporary, copy):  # on a full disk they would be in the way
                left.unlink(missing_ok=True)
            raise

    def _save(self, content: dict[str, Any], temporary: Path, copy: Path | None) -> None:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        if not self._proved:
            # Better to learn now than at a resume that a user's scheduler, say, keeps objects
            # in its state that no `weights_only` load accepts.
            read_checkpoint(temporary)
            self._proved = True
        if copy is not None:
            # Before `last`: a `last` whose score counts as the best must find it kept.
            shutil.copyfile(temporary, copy)
            _sync(copy)
            os.replace(copy, self.best)
        # A damaged `last` must not take the place of the only whole one.
        if self.last.exists() and (self._wrote or _is_whole(self.last)):
            os.replace(self.last, self.previous)
        os.replace(temporary, self.last)
        self._wrote = True
        _sync(self.folder)

    def load_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole, and its content; None if there was never one.

        Raises:
            ValueError: There are checkpoints, and all are damaged.
        """
        causes = []
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            try:
                content = read_checkpoint(path)
            except ValueError as error:
                causes.append(str(error))
                continue
            if causes:
                _log.warning("%s; going on from %s, the one before", "; ".join(causes), path)
            return path, content
        if causes:
            raise ValueError(
                f"{'; '.join(causes)}; no whole checkpoint is left: start anew with "
                f"trainer.resume=null"
            )
        return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint: tensors and plain values only.

    Raises:
        ValueError: The file is missing, cut short, damaged, or of another program.
    """
    if not path.is_file():
        raise ValueError(f"checkpoint {path} does not exist")
    try:
        # torch's own reader does not compare checksums; a flipped bit would go unseen.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"checkpoint {path} is damaged: checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"checkpoint {path} is cut short or damaged ({path.stat().st_size} bytes)"
        ) from error
    except ValueError:
        raise
    except Exception as error:  # what a damaged archive can raise here is not documented
        reason = str(error).strip().split("\n", 1)[0]
        raise ValueError(f"checkpoint {path} cannot be read: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"checkpoint {path} has format {found!r}, this program reads {FORMAT}")
    return content


def _is_whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except ValueError:
        return False
    return True


def _sync(path: Path) -> None:
    """Have a file, or a folder's entries, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
