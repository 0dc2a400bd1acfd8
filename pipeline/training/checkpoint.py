"""Write and read checkpoints: whole or not there, checked before they are used."""

from __future__ import annotations

import logging
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from penstock.core.files import sync, whole_file
from penstock.core.rng import Stream, philox_words
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.files.remote import find_file
from penstock.pipeline.config.errors import listing
from penstock.pipeline.config.saved import INIT_FROM
from penstock.pipeline.learning.weights import Weights
from penstock.pipeline.training.distributed import shards
from penstock.pipeline.training.settings import TrainerSettings

_log = logging.getLogger(__name__)

FORMAT = 1
_WRAPS = ("model", "state_dict", "model_state_dict", "weights", "net", "module")


class CheckpointFolder:
    """The checkpoints of a run: ``last.pt``, the one before it, ``previous.pt``, and ``best.pt``.

    Args:
        folder: Made with the first checkpoint.

    Attributes:
        last: The newest checkpoint.
        previous: The one before the newest.
        best: The one with the best score.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.pt"
        self.previous = folder / "previous.pt"
        self.best = folder / "best.pt"
        self._proved = False
        self._wrote = False

    def exists(self) -> bool:
        """Whether there is a checkpoint, damaged or not."""
        return self.last.exists() or self.previous.exists()

    def save(self, content: dict[str, Any], *, best: bool) -> None:
        """Write the newest checkpoint, which becomes the best one too if `best`.

        A kill at any moment leaves `last` or `previous` whole.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self.last, alone=True) as temporary:
            with temporary.open("wb") as file:
                torch.save({"format": FORMAT, **content}, file)
            if not self._proved:
                # Better to learn now than at a resume that a user's scheduler, say, keeps objects
                # in its state that no `weights_only` load accepts.
                _read_file(temporary, temporary)
                self._proved = True
            if best:
                # Before `last`: a `last` whose score counts as the best must find it kept.
                with whole_file(self.best, alone=True) as copy:
                    shutil.copyfile(temporary, copy)
            # A damaged `last` must not take the place of the only whole one.
            if self.last.exists() and (self._wrote or _is_whole(self.last)):
                os.replace(self.last, self.previous)
        self._wrote = True
        sync(self.folder)
        self._remove_unused_shards()

    def _remove_unused_shards(self) -> None:
        """Remove those that no checkpoint names, as after a kill or when it has gone."""
        unused = {place.name: place for place in self.folder.glob(shards.PATTERN)}
        for file in (self.last, self.previous, self.best) if unused else ():
            with suppress(ValueError):  # damaged, or there is none
                content = _read_file(file, file)
                unused.pop(content.get("shards", {}).get("folder"), None)
        for place in unused.values():
            shutil.rmtree(place, ignore_errors=True)

    def load_newest(
        self, *, url: str | None = None, empty: Callable[..., torch.Tensor] = torch.empty
    ) -> tuple[Path | str, dict[str, Any]] | None:
        """The newest checkpoint that is whole, and its content; None if there was never one.

        Args:
            url: Of the folder that is looked into; None: the folder itself.
            empty: Makes room for a tensor that lies in shards.

        Raises:
            ValueError: There are checkpoints, and all are damaged.
            RemoteError: The URL cannot be read.
        """
        causes = []
        for file in (self.last, self.previous):
            path = file if url is None else f"{url}/{file.name}"
            if not is_there(path):
                continue
            try:
                content = read_checkpoint(path, empty=empty)
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


def is_there(path: Path | str) -> bool:
    """Whether there is a file, or one behind a URL."""
    return find_file(str(path)) is not None if is_url(path) else Path(path).is_file()


def find_checkpoint(path: str, key: str) -> Path | str:
    """The checkpoint that a path or a URL names: itself, or the best or else the last of a run.

    Raises:
        ValueError: There is none.
        RemoteError: The URL cannot be read.
    """
    place = absolute_path(path) if is_url(path) else Path(path).expanduser()
    if is_there(place):
        return place
    names = ("checkpoints/best.pt", "checkpoints/last.pt")
    for candidate in (f"{place}/{name}" for name in names):
        if is_there(candidate):
            return candidate if is_url(place) else Path(candidate)
    if isinstance(place, Path) and not place.exists():
        raise ValueError(f"{key}: {place} does not exist; give a run's folder or a checkpoint")
    raise ValueError(
        f"{key}: {place} has no checkpoints; give the folder of a run that has written one"
    )


def read_checkpoint(
    path: Path | str,
    *,
    foreign: bool = False,
    empty: Callable[..., torch.Tensor] = torch.empty,
) -> Any:
    """The content of a checkpoint, a file or behind a URL: tensors and plain values only.

    Args:
        path: The file or URL.
        foreign: It may be of another program.
        empty: Makes room for a tensor that lies in shards, called with its size and ``dtype``.

    Raises:
        ValueError: The file is missing, cut short, damaged, or of another program.
        RemoteError: The URL cannot be read.
    """
    if not is_there(path):
        raise ValueError(f"checkpoint {path} does not exist")
    file = Path(local_copy(str(path)) if is_url(path) else path)
    content = _read_file(file, path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        if foreign:
            return content
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"checkpoint {path} has format {found!r}, this program reads {FORMAT}")
    if "shards" not in content:
        return content
    if is_url(path):
        raise ValueError(
            f"checkpoint {path} lies in shards, in the folder {content['shards']['folder']} beside "
            f"it; copy the run's folder to this machine and give its path"
        )
    return shards.read_shards(content, file, empty)


def _read_file(file: Path, path: Path | str) -> Any:
    """Read what a file of torch's holds, known to the user as `path`."""
    try:
        # torch's own reader does not compare checksums; a flipped bit would go unseen.
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"checkpoint {path} is damaged: checksum of {damaged}")
        return torch.load(file, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"checkpoint {path} is cut short or damaged ({file.stat().st_size} bytes)"
        ) from error
    except ValueError:
        raise
    except Exception as error:  # what a damaged archive can raise here is not documented
        reason = str(error).strip().split("\n", 1)[0]
        raise ValueError(f"checkpoint {path} cannot be read: {reason}") from error


def read_weights(path: str) -> Weights:
    """Read the weights of a run's folder, a checkpoint, a state dict or a ``.safetensors`` file.

    Args:
        path: Its path or URL; of a folder its best checkpoint, or else the last.

    Raises:
        ValueError: There is nothing there, or no weights.
        RemoteError: The URL cannot be read.
    """
    place = str(find_checkpoint(path, INIT_FROM))
    file = Path(local_copy(place) if is_url(place) else place)
    if place.endswith(".safetensors"):
        content: Any = _read_safetensors(file, place)
    elif zipfile.is_zipfile(file):
        content = read_checkpoint(place, foreign=True)
    else:  # the form that torch wrote before 1.6
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what a file of any kind can raise here is not documented
            raise ValueError(
                f"{INIT_FROM}: {place} is no file of weights that torch reads"
            ) from error
    found = content if isinstance(content, Mapping) else {}
    wraps = ("model",) if found.get("format") == FORMAT else _WRAPS
    if not any(isinstance(each, torch.Tensor) for each in found.values()):
        found = next((found[w] for w in wraps if isinstance(found.get(w), Mapping)), found)
    tensors = {n: each for n, each in found.items() if isinstance(each, torch.Tensor)}
    if not tensors:
        held = listing(map(str, found), 8) or type(content).__name__
        raise ValueError(
            f"{INIT_FROM}: {place} holds no tensors by name ({held}); give a run's folder, or a "
            f"file of a state dict"
        )
    return Weights(place, tensors)


def _read_safetensors(file: Path, place: str) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ValueError(
            f"{INIT_FROM}: {place} needs the package safetensors; run: pip install "
            f"'penstock[safetensors]'"
        ) from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{INIT_FROM}: {place} is no whole .safetensors file: {error}") from error


def _is_whole(path: Path) -> bool:
    try:
        content = _read_file(path, path)
        if "shards" in content:
            shards.check_shards(content["shards"], path)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class RunState:
    """The place at which a run stands, in plain numbers that a checkpoint can hold.

    Attributes:
        epoch: The epoch being trained, counted from 0.
        batch: Batches of this epoch that have been trained on.
        step: Optimizer steps made.
        closed: Whether validation and checkpoint of the last step's epoch (or of the last step
            of all) are done; a run interrupted before makes up for them.
        samples: Valid samples trained on, over all ranks.
        window_loss: Sum of the losses since the last line in the metrics.
        window_steps: Number of these losses.
        epoch_loss: Sum of the losses of this epoch that have been in a line.
        epoch_steps: Number of these losses.
        best: The best score so far.
        best_epoch: The epoch that has it, counted from 1.
        best_metrics: Its validation's figures.
        metrics: The last validation's figures.
        image_size: Height and width of the images trained on; None if they vary.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    closed: bool = True
    samples: int = 0
    window_loss: float = 0.0
    window_steps: int = 0
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    best: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] | None = None
    metrics: dict[str, float] | None = None
    image_size: tuple[int, int] | None = None

    def steps_reached(self, settings: TrainerSettings) -> bool:
        """Whether the settings' optimizer steps are made."""
        return settings.max_steps is not None and self.step >= settings.max_steps

    def reached(self, settings: TrainerSettings) -> bool:
        """Whether as much has been trained as the settings ask for."""
        by_epochs = settings.max_epochs is not None and self.epoch >= settings.max_epochs
        return by_epochs or self.steps_reached(settings)

    def is_better(self, score: float, *, higher: bool) -> bool:
        """Whether a score beats the best one so far; one that is no number never does."""
        if score != score:
            return False
        return self.best is None or (score > self.best if higher else score < self.best)

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over all fields; an older checkpoint may lack some."""
        for field in fields(self):
            setattr(self, field.name, state.get(field.name, field.default))


def seed_random_states(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch; every rank gets draws of its own."""
    words = philox_words(seed, 0, rank, rank + 1, Stream.GLOBAL)[0]
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) & 0xFFFFFFFF)
    torch.manual_seed(int(words[2]))


def random_states() -> dict[str, Any]:
    """The states as tensors and plain values, which load with ``weights_only``."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert name == "MT19937"
    return {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Set Python's, NumPy's and torch's states to what `random_states` gave."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def load_weights(model: nn.Module, weights: Mapping[str, Any], *, where: str, remedy: str) -> None:
    """Load weights that must be those of the model.

    Args:
        model: The model.
        weights: What the state of a model was.
        where: What to say in front of what does not fit.
        remedy: What to say behind it.

    Raises:
        ValueError: They are of another model; the first difference is named.
    """
    try:
        model.load_state_dict(weights)
    except (RuntimeError, KeyError, ValueError) as error:
        misfit = _first_misfit(model.state_dict(), weights) or " ".join(str(error).split())
        raise ValueError(f"{where}: {misfit}; {remedy}") from error


def _first_misfit(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str | None:
    own = {name: value for name, value in own.items() if not is_lazy(value)}
    for name, value in own.items():
        if name not in weights:
            return f"there is no {name} in it, which the model has"
        given, wanted = (getattr(each, "shape", None) for each in (weights[name], value))
        if given != wanted:
            return f"{name} is {_shape(given)} in it and {_shape(wanted)} in the model"
    more = next((name for name in weights if name not in own), None)
    return None if more is None else f"there is a {more} in it, which the model has not"


def _shape(shape: Any) -> str:
    return "no tensor" if shape is None else str(list(shape))
