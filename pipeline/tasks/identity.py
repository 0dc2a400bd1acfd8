"""Bring images of the same identity near to each other: triplets, and retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import mean_over_valid, output_of, valid_rows

if TYPE_CHECKING:
    import torch

_ROLES = {"": 0, "query": 1, "gallery": 2}


@register("task", "identity")
class Identity:
    """Metric learning: a batch-hard triplet loss and cross-entropy; CMC and mAP of retrieval.

    Triplets are made of the rows that a rank has (`sampler=identity` keeps an identity's images
    on one rank), so that the loss of two ranks is that of two smaller batches; a rank needs the
    images of two identities or more.

    In evaluation images are looked for among others: those whose field ``role`` is ``query``
    among those whose is ``gallery``, or where no roles are given each among all others. Images
    of the query's identity that its own camera took (field ``camera``, if there is one) do not
    count. See `pipeline.learning.metrics.Retrieval`.

    Args:
        num_classes: Identities of the training data; with a `field` that is no class, those that
            its annotations name.
        class_names: Their names.
        field: The field that says the identity, a whole number; below 0 it is nobody.
        margin: Of the triplets; null: a soft margin.
        triplet_weight: What the triplets weigh.
        class_weight: What the cross-entropy weighs, of a model that gives ``logits``.
        label_smoothing: Share of its target spread over all identities.
    """

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: Sequence[str] | None = None,
        field: str = "label",
        margin: Annotated[float, Ge(0)] | None = 0.3,
        triplet_weight: Annotated[float, Ge(0)] = 1.0,
        class_weight: Annotated[float, Ge(0)] = 1.0,
        label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.1,
    ) -> None:
        self.num_classes = num_classes or 0
        # A class id is its own class; other numbers are named by themselves.
        self._numbers = None if field == "label" else _numbers(field, class_names or ())
        self.field = field
        self.margin = margin
        self.triplet_weight = triplet_weight
        self.class_weight = class_weight
        self.label_smoothing = label_smoothing

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``triplets`` and, where the model gives logits, ``cross_entropy``.

        Means over the valid rows; 0, with a gradient of 0, if none is. A row of an identity that
        the training data has not adds nothing to the cross-entropy.

        Args:
            outputs: ``features`` float [B, D], and maybe ``logits`` float [B, num_classes].
            batch: The identity's field, int64 [B], and ``valid`` bool [B].
        """
        import torch
        from torch.nn import functional

        from penstock.pipeline.learning.losses import batch_hard

        features = _features(outputs)
        identities = self._identities(batch)
        valid = batch.get("valid")
        if valid is None:
            valid = torch.ones_like(identities, dtype=torch.bool)
        somebody = valid & (identities >= 0)
        triplets = batch_hard(features, identities, somebody, margin=self.margin)
        losses = {"triplets": self.triplet_weight * mean_over_valid(triplets, valid)}
        if "logits" in outputs and self.num_classes:
            classes, known = self._classes(identities)
            by_row = functional.cross_entropy(
                outputs["logits"].float(),
                classes,
                label_smoothing=self.label_smoothing,
                reduction="none",
            )
            by_row = by_row.where(known, by_row.new_zeros(()))
            losses["cross_entropy"] = self.class_weight * mean_over_valid(by_row, valid)
        return losses

    def metrics(self) -> Any:
        """``rank_1``, ``rank_5``, ``rank_10`` (CMC) and ``map``."""
        from penstock.pipeline.learning.metrics import Retrieval, collected

        return collected(retrieval=Retrieval())

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        import torch

        identities = self._identities(batch)
        cameras = batch.get("camera")
        names = batch.get("role", [""] * len(identities))
        for name in names:
            if name not in _ROLES:
                raise ValueError(f"task identity: role {name!r}, expected query or gallery")
        roles = torch.tensor([_ROLES[name] for name in names], device=identities.device)
        cameras = torch.full_like(identities, -1) if cameras is None else cameras
        features = _features(outputs).detach()
        rows = valid_rows(batch, batch["position"], features, identities, cameras, roles)
        if len(rows[0]):
            metrics.update(*rows)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """``features``, what images are compared by, float [B, D]."""
        return {"features": _features(outputs).float()}

    def _identities(self, batch: Batch) -> torch.Tensor:
        import torch

        values = batch.get(self.field)
        if not isinstance(values, torch.Tensor) or values.is_floating_point() or values.ndim != 1:
            what = "no such field" if values is None else "not one whole number for each"
            raise ValueError(
                f"task identity: {self.field!r}: {what}; the batch has "
                f"{', '.join(sorted(batch))}; set task.field (and sampler.column), or "
                f"dataset/annotations=filename with a pattern that has a group of that name"
            )
        return values

    def _classes(self, identities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Class ids for the logits, int64 [B], and whether there is one, bool [B]."""
        import torch

        if self._numbers is None:
            known = (identities >= 0) & (identities < self.num_classes)
            return identities.where(known, 0), known
        numbers = torch.tensor(self._numbers, device=identities.device)
        classes = torch.searchsorted(numbers, identities).clamp(max=len(numbers) - 1)
        return classes, (numbers[classes] == identities) & (identities >= 0)


def _numbers(field: str, names: Sequence[str]) -> list[int]:
    try:
        return sorted(map(int, names))
    except ValueError:
        raise ValueError(
            f"task identity: field {field!r} has the classes {', '.join(names[:4])}, expected "
            f"whole numbers; set task.field to what says the identity"
        ) from None


def _features(outputs: Any) -> torch.Tensor:
    expected = "a dict with 'features', float [B, D]; choose model=embedder"
    return output_of(outputs, "features", task="identity", expected=expected)
