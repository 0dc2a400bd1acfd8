"""Segmentation models of segmentation-models-pytorch: a decoder over an encoder."""

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
    from penstock.pipeline.learning.networks import FedModule


def _known(
    *, name: str, encoder: str, pretrained: bool = False, weights: str | None = None
) -> ModelCapabilities:
    """Look names up, and what the encoder's weights want of images."""
    library = _library()
    refuse_unknown(name.lower(), [*library.MODEL_ARCHITECTURES_MAPPING], model="smp")
    encoders = library.encoders.get_encoder_names()
    if not encoder.startswith("tu-"):  # those are of timm
        refuse_unknown(encoder, encoders, model="smp", key="model.encoder", what="encoders")
    refuse_both(pretrained, weights, model="smp")
    if not pretrained:
        return ModelCapabilities(begins_with=BEGINS_WITH)
    try:
        wanted = library.encoders.get_preprocessing_params(encoder)
    except Exception as error:  # whatever the library or the network says
        if is_trouble(error):
            raise
        raise ValueError(
            f"model smp: how the weights of {encoder} want images cannot be read: "
            f"{in_a_line(error)}; type another model.encoder, or model.pretrained=false"
        ) from error
    most = max(wanted["input_range"])  # 255 where the means are of bytes
    mean, std = ([value / most for value in wanted[each]] for each in ("mean", "std"))
    return ModelCapabilities(mean=mean, std=std, begins_with=BEGINS_WITH)


def _library() -> Any:
    package = "segmentation-models-pytorch"
    return import_library("segmentation_models_pytorch", model="smp", package=package)


@register("model", "smp", capabilities=_known)
def smp(
    *,
    num_classes: int | None,
    name: str = "unet",
    encoder: str = "resnet34",
    pretrained: bool = False,
    weights: str | None = None,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
) -> FedModule:
    """A model of segmentation-models-pytorch (smp), for ``task=segmentation``.

    Args:
        num_classes: Classes of the data's masks.
        name: Of the architecture: ``unet``, ``fpn``, ``deeplabv3plus``, ``segformer``, ...
        encoder: Such as ``resnet34``; ``tu-<name>`` is one of timm.
        pretrained: Begin with the published weights of the encoder.
        weights: Begin with the weights in this file, ``.safetensors`` or ``.pth``, of the whole
            model, as far as they do not depend on another number of classes.
        args: Further arguments of the architecture, such as ``{decoder_dropout: 0.2}``.

    Raises:
        ValueError: The data does not say its classes, or it cannot be made of these arguments.
    """
    from penstock.pipeline.learning.networks import FedModule

    classes = require_classes(num_classes, model="smp", task="segmentation")
    try:
        model = _library().create_model(
            name, encoder, encoder_weights="imagenet" if pretrained else None, classes=classes,
            **args,
        )  # fmt: skip
    except Exception as error:  # whatever the library says of arguments, or the network
        if is_trouble(error):
            raise
        raise ValueError(
            f"model smp: {name} over {encoder} cannot be made: {in_a_line(error)}; check "
            f"model.encoder and model.args, or begin with model.weights=<file>"
        ) from error
    if weights is not None:
        begin_with(model, read_weights(weights), where=f"model.weights: {weights}")
    remedy = "type augment.height and augment.width that are multiples of 32, or set model.args"
    return FedModule(model, "image", what="model smp", remedy=remedy)
