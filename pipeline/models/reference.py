"""Check what a config says of the reference models, and build their networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Lt, MultipleOf

from penstock.core.registry import register

if TYPE_CHECKING:
    from penstock.pipeline.learning import networks

Width = Annotated[int, Ge(8), MultipleOf(8)]
"""Channels of a first stage: group norm makes groups of eight."""


@register("model", "small_cnn")
def small_cnn(
    *, num_classes: int | None, width: Width = 24, dropout: float = 0.0
) -> networks.SmallCnn:
    """A small convolutional classifier for images of any size.

    Args:
        num_classes: Classes of the data.
        width: Channels of the first stage; the others have 2, 4 and 4 times as many.
        dropout: Share of the pooled features that is dropped in training.

    Raises:
        ValueError: The data has no classes.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model small_cnn classifies, and the data has no classes; for labels in folders type "
            "dataset.storage.labels=folder, for labels in names such as dog_1.wav type "
            "dataset.storage.labels=filename 'dataset.storage.label_pattern=^([^_]+)_' (of tables "
            "dataset.storage.label_column, of arrays a file labels.npy, of streams "
            "dataset.source.classes, with dataset=torch dataset.classes=10, or their names; of "
            "several labels dataset/annotations=labels_csv), or choose another model"
        )
    return networks.SmallCnn(num_classes=num_classes, width=width, dropout=dropout)


@register("model", "module")
def module(*, module: Any, input: str = "image") -> networks.FedModule:  # noqa: A002 (the config's word)
    """Any torch module, called with one field of the batch.

    Args:
        module: The module, a node with a ``_target_`` of its own.
        input: The batch's field that it is called with.
    """
    from penstock.pipeline.learning import networks

    return networks.FedModule(module, input)


@register("model", "embedder")
def embedder(
    *,
    num_classes: int | None,
    width: Width = 24,
    features: Annotated[int, Ge(1)] = 64,
    classifier: bool = True,
) -> networks.Embedder:
    """A small network that gives images of any size features of length 1.

    Args:
        num_classes: Identities of the training data.
        width: Channels of the first stage; the others have 2, 4 and 4 times as many.
        features: Numbers in a feature vector.
        classifier: Also score the identities of the training data, for a cross-entropy.
    """
    from penstock.pipeline.learning import networks

    classes = num_classes or 0 if classifier else 0
    return networks.Embedder(num_classes=classes, width=width, features=features)


@register("model", "segmenter")
def segmenter(*, num_classes: int | None, width: Width = 16) -> networks.Segmenter:
    """A small encoder-decoder that gives every pixel of an image of any size a class.

    Args:
        num_classes: Classes of the data's masks.
        width: Channels at full size; coarser levels have up to 8 times as many.

    Raises:
        ValueError: The data does not say its classes.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model segmenter: how many classes the masks have is not known; name them in "
            "classes.txt beside the masks, or by dataset.annotations.classes=[sky,road]; of masks "
            "in the records, dataset/annotations=in_records "
            "dataset.annotations.classes.mask=[sky,road]"
        )
    return networks.Segmenter(num_classes=num_classes, width=width)


@register("model", "keypoint_net")
def keypoint_net(*, num_classes: int | None, width: Width = 16) -> networks.KeypointNet:
    """A small network that finds the keypoints of one object in images of any size.

    Args:
        num_classes: Keypoints of an object, as many as the data names.
        width: Channels at full size; coarser levels have up to 8 times as many.

    Raises:
        ValueError: The data names no keypoints.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model keypoint_net finds keypoints, and the data names none; choose "
            "dataset/annotations=coco with keypoints, or another model"
        )
    return networks.KeypointNet(num_keypoints=num_classes, width=width)


@register("model", "box_detector")
def box_detector(*, num_classes: int | None, width: Width = 16) -> networks.BoxDetector:
    """A small anchor-free detector for images of any size.

    Args:
        num_classes: Classes of the data's boxes.
        width: Channels of the first stage; the others have 2 and 4 times as many.

    Raises:
        ValueError: The data has no classes of boxes.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model box_detector detects, and the data has no classes of boxes; choose "
            "dataset/annotations=voc, coco, yolo or boxes_csv, or another model; of boxes in the "
            "records, dataset/annotations=in_records "
            "dataset.annotations.classes.box_labels=[cat,dog]"
        )
    return networks.BoxDetector(num_classes=num_classes, width=width)


@register("model", "instance_net")
def instance_net(
    *, num_classes: int | None, width: Width = 16, prototypes: Annotated[int, Ge(1)] = 16
) -> networks.InstanceNet:
    """A small detector whose boxes have masks, for images of any size.

    Args:
        num_classes: Classes of the data's boxes.
        width: Channels of the first stage; the others have 2 and 4 times as many.
        prototypes: Masks that those of all boxes are mixtures of.

    Raises:
        ValueError: The data has no classes of boxes.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model instance_net finds boxes with masks, and the data has no classes of boxes; "
            "choose dataset/annotations=coco_masks, in_records where the records hold them, or "
            "another model"
        )
    return networks.InstanceNet(num_classes=num_classes, width=width, prototypes=prototypes)


_FIELDS = ("label", "labels", "values", "box_labels", "keypoints", "mask")


@register("model", "multi_net")
def multi_net(
    *, task_fields: Mapping[str, tuple[str, int]], width: Width = 16
) -> networks.MultiNet:
    """A small network with shared features and a head for each task of `task=multi`.

    Args:
        task_fields: By the task's name: its field and the number of its classes.
        width: Channels of the first stage; the others have 2 and 4 times as many.

    Raises:
        ValueError: There are no tasks, or one is of a kind or of data that it has no head for.
    """
    from penstock.pipeline.learning import networks

    if not task_fields:
        raise ValueError("model multi_net has a head for each of several tasks; type task=multi")
    for name, (field, count) in task_fields.items():
        if field not in _FIELDS:
            raise ValueError(
                f"model multi_net: task {name!r} is about {field!r}, and there are heads for "
                f"{', '.join(_FIELDS)}; take a model of your own"
            )
        if not count:
            raise ValueError(
                f"model multi_net: task {name!r} is about {field!r}, and the data has no classes "
                f"of it; choose dataset/annotations that have, or take task.tasks.{name} away"
            )
    return networks.MultiNet(task_fields, width=width)


@register("model", "sequence_cnn")
def sequence_cnn(
    *,
    num_classes: int | None,
    num_tokens: Annotated[int, Ge(1)] = 256,
    field: str = "tokens",
    num_features: Annotated[int, Ge(1)] | None = None,
    width: Annotated[int, Ge(1)] = 64,
) -> networks.SequenceCnn:
    """A small convolutional classifier for sequences of tokens or features, with their mask.

    Args:
        num_classes: Classes of the data.
        num_tokens: Tokens are 0 to this less one.
        field: The sequence in the batch, padded by ``collate=pad``.
        num_features: Features of each element, where it is one of arrays [T, features]; None:
            it is one of tokens.
        width: Channels.

    Raises:
        ValueError: The data has no classes.
    """
    from penstock.pipeline.learning import networks

    if not num_classes:
        raise ValueError(
            "model sequence_cnn classifies, and the data has no classes; for a table type "
            "dataset.storage.label_column=<column>, for files with names such as dog_1.wav type "
            "dataset.storage.labels=filename 'dataset.storage.label_pattern=^([^_]+)_', or choose "
            "another model"
        )
    return networks.SequenceCnn(
        num_classes=num_classes,
        num_tokens=num_tokens,
        field=field,
        num_features=num_features,
        width=width,
    )


@register("model", "token_model")
def token_model(
    *,
    num_tokens: Annotated[int, Ge(1)] = 256,
    field: str = "tokens",
    max_length: Annotated[int, Ge(1)] = 1024,
    width: Annotated[int, Ge(4), MultipleOf(4)] = 64,
    depth: Annotated[int, Ge(1)] = 2,
) -> networks.TokenModel:
    """A small transformer for ``task=tokens``, of sequences that are packed or padded.

    Args:
        num_tokens: Tokens are 0 to this less one.
        field: The sequences in the batch.
        max_length: The longest sequence.
        width: Channels.
        depth: Blocks.
    """
    from penstock.pipeline.learning import networks

    return networks.TokenModel(
        num_tokens=num_tokens, field=field, max_length=max_length, width=width, depth=depth
    )


@register("model", "table_net")
def table_net(
    *,
    num_classes: int | None,
    table: Any,
    width: Annotated[int, Ge(1)] = 64,
    depth: Annotated[int, Ge(0)] = 3,
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1,
) -> networks.TableNet:
    """Embeddings and residual layers for rows of tables: classes, or one number.

    Args:
        num_classes: Classes of the data; none: one number is predicted.
        table: What `dataset/decode=table` knows of the columns.
        width: Channels.
        depth: Residual blocks.
        dropout: Share of a block's channels that is dropped in training.

    Raises:
        ValueError: The data is no table.
    """
    from penstock.pipeline.learning import networks

    if table is None:
        raise ValueError(
            "model table_net takes rows of a table; choose dataset=csv or parquet with "
            "dataset/decode=table, or another model"
        )
    return networks.TableNet(
        num_features=table.num_features,
        num_categories=table.num_categories,
        num_outputs=num_classes or 1,
        width=width,
        depth=depth,
        dropout=dropout,
    )
