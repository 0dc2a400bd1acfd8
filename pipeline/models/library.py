"""What models out of libraries share: the import, names, classes and files of weights."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.user_errors import is_trouble

if TYPE_CHECKING:
    from torch import nn

_log = logging.getLogger(__name__)

_WRAPPERS = ("module.", "detector.", "segmenter.", "classifier.", "model.")
"""What names of weights begin with in a checkpoint of a run, and of others' wrappers."""

BEGINS_WITH = {"pretrained": False, "weights": None}
"""Arguments that say which weights such a model begins with, as they are for none."""


def import_library(name: str, *, model: str, package: str | None = None) -> Any:
    """Import a library.

    Args:
        name: Its module.
        model: The model that needs it, which is what the extra is called too.
        package: What is installed; None: as the module.

    Raises:
        ValueError: It is missing, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = package or name
        raise ValueError(
            f"model {model}: the package {error.name or package} is missing (the extra {model}); "
            f"run: pip install {package}"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:  # such as of another torch's operators
        said = " ".join(str(error).split())
        raise ValueError(
            f"model {model}: {name} cannot be imported: {said}; install versions that go together: "
            f"pip install --upgrade {package or name}"
        ) from error


def refuse_unknown(
    name: str, names: Collection[str], *, model: str, key: str = "model.name", what: str = "models"
) -> None:
    """Refuse a name that a library does not have.

    Args:
        name: The name.
        names: Those that it has.
        model: The model that is of this library.
        key: Where the name stands.
        what: What the names are of.

    Raises:
        ValueError: It has no such; near ones are named.
    """
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.5) or sorted(names)[:4]
    raise ValueError(
        f"{key}: {name!r} is none of the {len(names):,} {what} of {model}; near ones are "
        f"{', '.join(near)}; type {key}={near[0]}"
    )


def refuse_both(pretrained: bool, weights: str | None, *, model: str) -> None:
    """Refuse two places to begin from."""
    if pretrained and weights is not None:
        raise ValueError(
            f"model.pretrained: true given, and model.weights={weights} too, and model {model} "
            f"begins with one of them; type model.pretrained=false"
        )


def require_classes(num_classes: int | None, *, model: str, task: str = "classification") -> int:
    """Take the number of classes.

    Raises:
        ValueError: The data has none.
    """
    if not num_classes:
        raise ValueError(
            f"model {model}: its outputs are scores of classes, and the data of task={task} has "
            f"none; set dataset.storage.labels or dataset.annotations.classes, or choose another "
            f"model"
        )
    return num_classes


def in_a_line(error: Exception) -> str:
    """Say what a library raised in one line of some length."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) < 240 else f"{said[:236]} ..."


def read_weights(path: str) -> dict[str, Any]:
    """Read the state of a model from a file, also of one in a checkpoint or a wrapper of batches.

    Args:
        path: ``.safetensors``, or what torch has saved, of which only tensors are read.

    Raises:
        ValueError: It cannot be read, or holds no such state.
    """
    import torch

    file = Path(path).expanduser()
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the library says of a damaged file
        if is_trouble(error):
            raise
        raise ValueError(
            f"model.weights: {path} cannot be read: {in_a_line(error)}; give a .safetensors file "
            f"or what torch.save wrote of a state_dict"
        ) from error
    for name in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    tensors = isinstance(state, dict) and all(isinstance(v, torch.Tensor) for v in state.values())
    if not tensors or not state:
        raise ValueError(
            f"model.weights: {path} holds no weights by their names; give what torch.save wrote of "
            f"a state_dict"
        )
    return state


def begin_with(model: nn.Module, state: Mapping[str, Any], *, where: str) -> None:
    """Give a model the weights that fit by name and shape; the others stay as they were drawn.

    Those of other shapes are of a head for another number of classes.

    Raises:
        ValueError: More than a quarter does not fit: they are another model's.
    """
    own = model.state_dict()
    start = next((s for s in _WRAPPERS if f"{s}{next(iter(own))}" in state), "")
    state = {name.removeprefix(start): value for name, value in state.items()}
    fitting = {n: v for n, v in state.items() if n in own and v.shape == own[n].shape}
    missing = [name for name in own if name not in fitting]
    if len(missing) > len(own) / 4:
        name = missing[0]
        found = list(state[name].shape) if name in state else "not there"
        raise ValueError(
            f"{where}: {len(fitting)} of the model's {len(own)} weights fit; {name} is {found}, "
            f"expected {list(own[name].shape)}; give weights of this model, or set model.name"
        )
    model.load_state_dict(fitting, strict=False)
    if missing:
        modules = sorted({name.rpartition(".")[0] for name in missing})
        _log.info("the model begins with weights of %s, but for %s", where, ", ".join(modules))
