"""Image classifiers of timm, with their published weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import ModelCapabilities
from penstock.core.registry import register
from penstock.core.user_errors import is_trouble
from penstock.pipeline.models.library import (
    BEGINS_WITH,
    import_library,
    in_a_line,
    refuse_both,
    refuse_unknown,
    require_classes,
)

if TYPE_CHECKING:
    from penstock.pipeline.learning.networks import FedModule


def _known(*, name: str, pretrained: bool = False, weights: str | None = None) -> ModelCapabilities:
    """Look a name up, and what the weights of that name want of images."""
    published = _published(name)
    refuse_both(pretrained, weights, model="timm")
    if pretrained and not published.has_weights:
        raise ValueError(
            f"model.pretrained: true given, and timm has no weights of {name}; type "
            f"model.pretrained=false, or model.weights=<file>"
        )
    if not pretrained and weights is None:
        return ModelCapabilities(begins_with=BEGINS_WITH)
    return ModelCapabilities(mean=published.mean, std=published.std, begins_with=BEGINS_WITH)


def _published(name: str) -> Any:
    """Find what timm tells of a model's weights."""
    timm = import_library("timm", model="timm")
    architecture, _, tag = name.partition(".")
    refuse_unknown(architecture, timm.list_models(), model="timm")
    tags = timm.list_pretrained(f"{architecture}.*") if tag else []
    if tag and name not in tags:
        raise ValueError(
            f"model.name: {name!r} given, and the weights of {architecture} in timm are "
            f"{', '.join(tags) or 'none'}; type model.name={tags[0] if tags else architecture}"
        )
    return timm.models.get_pretrained_cfg(name) or timm.models.PretrainedCfg()


@register("model", "timm", capabilities=_known)
def timm(
    *,
    num_classes: int | None,
    name: str,
    pretrained: bool = False,
    weights: str | None = None,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
) -> FedModule:
    """A model of timm by its name, with a head for the classes of the data.

    Args:
        num_classes: Classes of the data.
        name: Such as ``resnet50``, or with the tag of its weights, ``resnet50.a1_in1k``.
        pretrained: Begin with the published weights, all but those of the head.
        weights: Begin with the weights in this file, ``.safetensors``, ``.pth`` or another that
            timm reads, with the head too where it is for as many classes.
        args: Further arguments of the model, such as ``{drop_path_rate: 0.1, img_size: 160}``.

    Raises:
        ValueError: The data has no classes, or it cannot be made of these arguments.
    """
    from penstock.pipeline.learning.networks import FedModule

    published = _published(name)
    classes = require_classes(num_classes, model="timm")
    try:
        if weights is not None:
            model = _begun_with(Path(weights).expanduser(), name, classes, published, args)
        else:
            library = import_library("timm", model="timm")
            model = library.create_model(name, pretrained=pretrained, num_classes=classes, **args)
    except Exception as error:  # whatever the library, the hub or the file's reader says
        if is_trouble(error):
            raise
        key = f"model.weights: {weights}" if weights is not None else f"model timm: {name}"
        raise ValueError(
            f"{key} cannot be loaded: {in_a_line(error)}; check model.name and model.args, or "
            f"type model.weights=<file of weights of {name}>"
        ) from error
    size = args.get("img_size", published.input_size[-1])
    remedy = f"type augment=imagenet augment.image_size={size}, or set model.args"
    return FedModule(model, "image", what="model timm", remedy=remedy)


def _begun_with(file: Path, name: str, classes: int, published: Any, args: dict[str, Any]) -> Any:
    """Make a model as the file has it, which must fit, and then give it a head of its own."""
    library = import_library("timm", model="timm")
    heads = published.classifier or ()
    heads = (heads,) if isinstance(heads, str) else heads
    there: dict[str, Any] = {"file": str(file)}
    in_file = published.num_classes
    if file.suffix != ".npz":  # which models read by themselves
        state = library.models.load_state_dict(str(file))
        scored = [state[f"{head}.weight"] for head in heads if f"{head}.weight" in state]
        in_file = len(scored[0]) if scored else 0
        there |= {"custom_load": False, "num_classes": in_file, "label_offset": 0}
    model = library.create_model(
        name, pretrained=True, num_classes=in_file, pretrained_cfg_overlay=there, **args
    )
    if in_file != classes:
        model.reset_classifier(classes)
    return model
