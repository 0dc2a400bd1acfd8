"""Open data for predictions, which need no labels: with its labels where they fit, else without."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.sample import Record
from penstock.datasets.map_dataset import MapDataset

if TYPE_CHECKING:
    from penstock.pipeline.loader.loader import Loader

log = logging.getLogger(__name__)

TRUTHS = ("label", "labels", "values", "target", "mask", "keypoints", "boxes", "box_labels",
          "box_masks", "box_crowd")  # fmt: skip
"""Fields that a record may lack when it is predicted."""
_FIRST = 8  # records that are looked at


def opened_for_predictions(
    opened: Callable[..., Loader], config: Mapping[str, Any], *, own: bool, target: str | None
) -> tuple[Loader, bool]:
    """Open data with its labels where they fit, else without.

    Labels in the records or in the names of folders are read if all of them are classes of the
    model. Label files beside new data are not read: a record without a row in them would be bad.

    Args:
        opened: Opens a config; takes ``labelled``.
        config: A run's config, maybe with other data.
        own: Whether the data is the run's.
        target: The column that a regression predicts.

    Returns:
        The loader, and whether it reads labels.

    Raises:
        ValueError: The data cannot be opened without labels either.
    """
    dataset = config["dataset"]
    in_records = (dataset.get("annotations") or {}).get("_target_") == "annotations/in_records"
    of_files = not in_records and dataset.get("annotations") is not None
    csv = (dataset.get("storage") or {}).get("labels") not in (None, "folder", "filename", "file")
    if own or not (of_files or csv or "source" in dataset):
        try:
            loader = opened(config)
        except ValueError as error:
            log.info("the data's labels are not read: %s", error)
        else:
            if not (missing := _missing_truths(loader, dataset, target)):
                return loader, True
            loader.close()
            log.info("the data's labels are not read: no field %s", ", ".join(missing))
    return opened(_without_labels(config, target), labelled=False), False


def _without_labels(config: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """Return the config of the same records without anything that labels them."""
    bare = deepcopy(dict(config))
    dataset = bare["dataset"]
    keys = dataset.get("keys") or {}
    drops: dict[str, None] = {
        name: None for name, new in keys.items() if new and new in (*TRUTHS, target)
    }
    for part in filter(None, (dataset.get("storage"), dataset.get("source"))):
        if "labels" in part and "storage" in dataset:
            part["labels"] = None
        if "label_column" in part:
            drops |= {part["label_column"]: None} if part["label_column"] else {}
            part["label_column"] = ""
    if "annotations" in dataset:
        dataset["annotations"] = None
    if "keys" in dataset:
        dataset["keys"] = {**keys, "label": None, **drops}
    if bare["augment"].get("keypoints"):
        bare["augment"]["keypoints"] = None  # its names are those of annotations
    return bare


def leave_target(dataset: dict[str, Any]) -> str | None:
    """Let a table's decoder pass the target as it is, so that rows without one are good.

    Args:
        dataset: Changed, where the figures of the table are known.

    Returns:
        The target's column; None where there is none, or nothing was changed.
    """
    decode = dataset.get("decode") or {}
    target: str | None = decode.get("target")
    if target is None or decode.get("statistics") is None:
        return None
    decode["target"] = None
    return target


def _missing_truths(loader: Loader, dataset: Mapping[str, Any], target: str | None) -> list[str]:
    """List renamed fields of labels that the first record that can be read does not have."""
    keys = dataset.get("keys") or {}
    renamed = [name for name, new in keys.items() if new and new in (*TRUTHS, target)]
    if not renamed or not isinstance(loader.dataset, MapDataset):
        return []
    storage = loader.dataset.storage
    for record in storage.read(np.arange(min(_FIRST, len(storage)))):
        if isinstance(record, Record):
            return [name for name in renamed if name not in record.fields]
    return []
