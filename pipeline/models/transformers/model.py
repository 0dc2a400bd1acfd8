"""Find a classifier of transformers by its name, and make it for the data's classes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
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


def _known(
    *,
    name: str,
    pretrained: bool = False,
    weights: str | None = None,
    args: dict[str, Any] = {},  # noqa: B006
) -> ModelCapabilities:
    """Look a name up, and what the weights of that name want of images."""
    config = _config(name, args)
    takes_images = _takes_images(name, config)
    refuse_both(pretrained, weights, model="transformers")
    if pretrained and not _is_published(name):
        raise ValueError(
            f"model.pretrained: true given, and {name!r} is a kind of model, which has no weights; "
            f"type model.name=<organisation/model of the hub, or a folder of one>"
        )
    if not takes_images or not (pretrained or weights) or not _is_published(name):
        return ModelCapabilities(begins_with=BEGINS_WITH)
    mean, std = _pixels(name)
    return ModelCapabilities(mean=mean, std=std, begins_with=BEGINS_WITH)


def _library() -> Any:
    return import_library("transformers", model="transformers")


def _is_published(name: str) -> bool:
    """Tell whether a name is of the hub or a folder, rather than of a kind of model."""
    return "/" in name or Path(name).expanduser().is_dir()


def _config(name: str, args: dict[str, Any]) -> Any:
    """Make the config of a model.

    Raises:
        ValueError: There is none of this name, or it has no such arguments.
    """
    library = _library()
    try:
        if _is_published(name):
            config = library.AutoConfig.from_pretrained(str(Path(name).expanduser()), **args)
        else:
            refuse_unknown(name, [*library.CONFIG_MAPPING], model="transformers")
            config = library.AutoConfig.for_model(name, **args)
        known = type(config)().to_dict()
    except (OSError, TypeError, AttributeError, KeyError) as error:
        if is_trouble(error):
            raise
        raise ValueError(
            f"model.name: {name!r} has no config that can be read: {in_a_line(error)}; give a "
            f"model of the hub, a folder of one, or a kind such as model.name=vit"
        ) from error
    if unknown := sorted({*args} - {*known}):
        near = ", ".join(sorted(known)[:12])
        raise ValueError(
            f"model.args: {unknown[0]!r} is no argument of {type(config).__name__}, which has "
            f"{near}, ...; correct its name, or leave it away"
        )
    return config


def _takes_images(name: str, config: Any) -> bool:
    """Tell whether a model classifies images, or else sequences of tokens.

    Raises:
        ValueError: It does neither.
    """
    library = _library()
    if type(config) in library.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return True
    if type(config) in library.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return False
    raise ValueError(
        f"model.name: {name!r} classifies neither images nor sequences; type one that does, such "
        f"as model.name=vit or model.name=bert"
    )


@cache
def _pixels(name: str) -> tuple[list[float], list[float]]:
    """Read what a model's processor does with images, after it has scaled them to 0..1."""
    try:
        processor = _library().AutoImageProcessor.from_pretrained(
            str(Path(name).expanduser()), use_fast=False
        )
    except Exception as error:  # whatever the library or the network says
        if is_trouble(error):
            raise
        raise ValueError(
            f"model transformers: how {name} wants its images cannot be read: {in_a_line(error)}; "
            f"check model.name"
        ) from error
    if not getattr(processor, "do_normalize", False):
        return [0.0] * 3, [1.0] * 3
    return list(processor.image_mean), list(processor.image_std)


@register("model", "transformers", capabilities=_known)
def transformers(
    *,
    num_classes: int | None,
    name: str,
    pretrained: bool = False,
    weights: str | None = None,
    field: str | None = None,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
) -> nn.Module:
    """A classifier of transformers: of images, or of tokens by ``task=sequence``.

    Args:
        num_classes: Classes of the data.
        name: A model of the hub, ``google/vit-base-patch16-224``, a folder of one, or a kind of
            model, such as ``vit`` or ``bert``, whose weights are drawn.
        pretrained: Begin with the published weights, all but those of the head.
        weights: Begin with the weights in this file, ``.safetensors`` or ``.pth``.
        field: What it takes of the batch; null: ``image``, or ``tokens``.
        args: Values of the model's config, such as ``{hidden_dropout_prob: 0.1}``.

    Raises:
        ValueError: The data has no classes, or it cannot be made of these arguments.
    """
    from penstock.pipeline.learning.networks import FedModule
    from penstock.pipeline.models.transformers.networks import TokenClassifier

    config, library = _config(name, args), _library()
    takes_images = _takes_images(name, config)
    config.num_labels = require_classes(num_classes, model="transformers")
    kind = (
        "AutoModelForImageClassification"
        if takes_images
        else ("AutoModelForSequenceClassification")
    )
    try:
        if pretrained:
            model = getattr(library, kind).from_pretrained(
                str(Path(name).expanduser()), config=config, ignore_mismatched_sizes=True
            )
        else:
            model = getattr(library, kind).from_config(config)
    except Exception as error:  # whatever the library, the hub or the file's reader says
        if is_trouble(error):
            raise
        raise ValueError(
            f"model transformers: {name} cannot be made: {in_a_line(error)}; check model.name and "
            f"model.args, or begin with model.weights=<file of its weights>"
        ) from error
    if weights is not None:
        begin_with(model, read_weights(weights), where=f"model.weights: {weights}")
    model.train()
    if not takes_images:
        return TokenClassifier(model, field=field or "tokens", num_tokens=config.vocab_size)
    size = getattr(config, "image_size", 224)
    remedy = f"type augment=imagenet augment.image_size={size}, or set model.args"
    return FedModule(model, field or "image", what="model transformers", remedy=remedy)
