"""Find a model of torchvision by its name, and make it for the data's classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.contracts import ModelCapabilities
from penstock.core.registry import register
from penstock.core.user_errors import is_trouble
from penstock.pipeline.models.library import (
    BEGINS_WITH,
    begin_with,
    import_library,
    in_a_line,
    read_weights,
    refuse_both,
    refuse_unknown,
    require_classes,
)

if TYPE_CHECKING:
    from torch import nn

_TASKS = {"": "classification", "segmentation": "segmentation", "detection": "detection"}
"""Modules of ``torchvision.models``, and the tasks that theirs are for."""
_OTHERS = {"googlenet", "inception_v3", "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2",
           "keypointrcnn_resnet50_fpn"}  # fmt: skip
"""Those that give in training, or take, what no task has."""


def _known(*, name: str, pretrained: bool = False, weights: str | None = None) -> ModelCapabilities:
    """Look a name up, and what the weights of that name want of images."""
    task = _task_of(name)
    refuse_both(pretrained, weights, model="torchvision")
    if task == "detection":  # they normalise by themselves
        return ModelCapabilities(mean=(0.0,) * 3, std=(1.0,) * 3, begins_with=BEGINS_WITH)
    if not pretrained and weights is None:
        return ModelCapabilities(begins_with=BEGINS_WITH)
    wanted = _published(name).transforms()
    return ModelCapabilities(mean=wanted.mean, std=wanted.std, begins_with=BEGINS_WITH)


def _task_of(name: str) -> str:
    """Find the task that a model is for.

    Raises:
        ValueError: There is no model of this name.
    """
    models = import_library("torchvision", model="torchvision").models
    tasks: dict[str, str] = {}
    for module, task in _TASKS.items():
        there = models.list_models(module=getattr(models, module) if module else models)
        tasks |= dict.fromkeys(set(there) - _OTHERS, task)
    refuse_unknown(name, tasks, model="torchvision")
    return tasks[name]


def _published(name: str) -> Any:
    models = import_library("torchvision", model="torchvision").models
    return models.get_model_weights(name).DEFAULT


@register("model", "torchvision", capabilities=_known)
def torchvision(
    *,
    num_classes: int | None,
    name: str,
    pretrained: bool = False,
    weights: str | None = None,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
) -> nn.Module:
    """A classifier, segmenter or detector of torchvision by its name, for the classes of the data.

    A detector, ``task=detection``, has losses and a normalisation of its own, and resizes images:
    ``model.args={min_size: 320, max_size: 640}`` says to what.

    Args:
        num_classes: Classes of the data.
        name: Such as ``resnet50``, ``fcn_resnet50`` or ``fasterrcnn_resnet50_fpn``.
        pretrained: Begin with the published weights, all but those that depend on the classes.
        weights: Begin with the weights in this file, ``.safetensors`` or ``.pth``, as far as they
            do not depend on another number of classes.
        args: Further arguments of the model, such as ``{dropout: 0.2}``.

    Raises:
        ValueError: The data has no classes, or it cannot be made of these arguments.
    """
    from penstock.pipeline.learning.networks import FedModule
    from penstock.pipeline.models.torchvision.networks import Detector, Segmenter

    task = _task_of(name)
    classes = require_classes(num_classes, model="torchvision", task=task)
    models = import_library("torchvision", model="torchvision").models
    plain = {} if task == "classification" else {"weights_backbone": None}
    counted = classes + 1 if task == "detection" else classes  # with the background
    try:
        model = models.get_model(name, weights=None, **plain, num_classes=counted, **args)
        state = _published(name).get_state_dict(check_hash=True) if pretrained else None
    except Exception as error:  # whatever the library says of arguments, or the network
        if is_trouble(error):
            raise
        raise ValueError(
            f"model torchvision: {name} cannot be made: {in_a_line(error)}; check model.args, or "
            f"begin with model.weights=<file of weights of {name}>"
        ) from error
    if weights is not None:
        begin_with(model, read_weights(weights), where=f"model.weights: {weights}")
    elif state is not None:
        begin_with(model, state, where=f"model.pretrained: the weights of {name}")
    if task == "detection":
        remedy = "set model.args={min_size: ..., max_size: ...}, or take task=detection"
        return Detector(model, classes, remedy=remedy)
    remedy = "give images of another size (augment.image_size=224), or set model.args"
    if task == "segmentation":
        return Segmenter(model, remedy=remedy)
    return FedModule(model, "image", what="model torchvision", remedy=remedy)
