"""Begin with weights that were trained before: of a run, or of a file of weights."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from penstock.datasets.files.access import is_url
from penstock.datasets.files.local_copies import local_copy
from penstock.pipeline.config.errors import listing
from penstock.pipeline.training.checkpoint import FORMAT, find_checkpoint, read_checkpoint
from penstock.pipeline.training.run_folder import write_whole

_log = logging.getLogger(__name__)

_KEY = "trainer.init_from"
RECORD = "init_from.json"
_WRAPS = ("model", "state_dict", "model_state_dict", "weights", "net", "module")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by name, and the file or URL that they are from."""

    place: str
    tensors: Mapping[str, torch.Tensor]


def read_weights(path: str) -> Weights:
    """Read the weights of a run's folder, a checkpoint, a state dict or a ``.safetensors`` file.

    Args:
        path: Its path or URL; of a folder its best checkpoint, or else the last.

    Raises:
        ValueError: There is nothing there, or no weights.
        RemoteError: The URL cannot be read.
    """
    place = str(find_checkpoint(path, _KEY))
    file = Path(local_copy(place) if is_url(place) else place)
    if place.endswith(".safetensors"):
        content: Any = _read_safetensors(file, place)
    elif zipfile.is_zipfile(file):
        content = read_checkpoint(place, foreign=True)
    else:  # the form that torch wrote before 1.6
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what a file of any kind can raise here is not documented
            raise ValueError(f"{_KEY}: {place} is no file of weights that torch reads") from error
    found = content if isinstance(content, Mapping) else {}
    wraps = ("model",) if found.get("format") == FORMAT else _WRAPS
    if not any(isinstance(each, torch.Tensor) for each in found.values()):
        found = next((found[w] for w in wraps if isinstance(found.get(w), Mapping)), found)
    tensors = {n: each for n, each in found.items() if isinstance(each, torch.Tensor)}
    if not tensors:
        held = listing(map(str, found), 8) or type(content).__name__
        raise ValueError(
            f"{_KEY}: {place} holds no tensors by name ({held}); give a run's folder, or a file "
            f"of a state dict"
        )
    return Weights(place, tensors)


def _read_safetensors(file: Path, place: str) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ValueError(
            f"{_KEY}: {place} needs the package safetensors; run: pip install "
            f"'penstock[safetensors]'"
        ) from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{_KEY}: {place} is no whole .safetensors file: {error}") from error


@dataclass(frozen=True, slots=True)
class Taken:
    """What a model took of weights.

    Attributes:
        place: Where they are from.
        taken: Names in the model.
        kept: Names that the model begins with as drawn, and why.
        unused: Names in the weights that the model has not.
    """

    place: str
    taken: tuple[str, ...]
    kept: Mapping[str, str]
    unused: tuple[str, ...]

    def write(self, run_dir: Path) -> None:
        """Write it to a run's folder."""
        content = {
            "from": self.place, "taken": self.taken, "kept": self.kept, "unused": self.unused
        }  # fmt: skip
        write_whole(run_dir / RECORD, json.dumps(content, indent=1) + "\n")

    def tell(self) -> None:
        """Say it in a line."""
        kept = listing((f"{name} ({why})" for name, why in self.kept.items()), 4)
        _log.info(
            "init  %d of %d tensors are from %s%s%s", len(self.taken),
            len(self.taken) + len(self.kept), self.place,
            f"; as drawn: {kept}" if kept else "",
            f"; not used: {listing(self.unused, 4)}" if self.unused else "",
        )  # fmt: skip


def take_weights(model: nn.Module, weights: Weights) -> Taken:
    """Load what fits by name and shape; names may begin otherwise than those of the model.

    Such beginnings are what wraps a model, ``module.`` or ``backbone.``: of up to two words, taken
    off or put before, the pair counts with which most fits.

    Raises:
        ValueError: Nothing fits, or no matrix: a bias may well have the same shape by chance.
    """
    own, given = model.state_dict(), weights.tensors

    def renamed(off: str, on: str) -> dict[str, str]:
        """Names as the model would have them, each with that in the weights."""
        return {on + name.removeprefix(off): name for name in given if name.startswith(off)}

    def fits(name: str, there: str) -> bool:
        return is_lazy(own[name]) or own[name].shape == given[there].shape

    pairs = product(_beginnings(given), _beginnings(own))
    tries = [{n: t for n, t in renamed(*pair).items() if n in own} for pair in pairs]
    best = max(tries, key=lambda tried: sum(fits(*each) for each in tried.items()))
    found = {name: there for name, there in best.items() if fits(name, there)}
    if not any(given[there].ndim > 1 for there in found.values()):
        raise ValueError(
            f"{_KEY}: nothing in {weights.place} fits the model by name and shape: in it there is "
            f"{_some(given)}, in the model {_some(own)}; give weights of such a model"
        )
    model.load_state_dict({name: given[there] for name, there in found.items()}, strict=False)
    kept = {
        name: f"{[*given[best[name]].shape]} in it, {[*own[name].shape]} here"
        if name in best else "not in it"
        for name in own if name not in found
    }  # fmt: skip
    unused = tuple(name for name in given if name not in best.values())
    return Taken(weights.place, tuple(found), kept, unused)


def _beginnings(names: Iterable[str]) -> list[str]:
    """Nothing, and up to two words that the first name begins with."""
    words = next(iter(names), "").split(".")[:-1]
    return ["", *(".".join(words[:count]) + "." for count in (1, 2) if len(words) >= count)]


def _some(tensors: Mapping[str, Any]) -> str:
    shapes = (
        f"{name} {'(any shape)' if is_lazy(each) else [*each.shape]}"
        for name, each in tensors.items()
    )
    return listing(shapes, 2)
