"""Pair neighbouring positions of a batch, and mix their labels and boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import uniforms

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows that are mixed with one another.

    Attributes:
        partner: Row of the other, or the row itself where there is none, int64 [B].
        mixed: Whether the row is mixed with it, bool [B].
        draws: Uniforms, float32 [count, B], the same for both of a pair.
    """

    partner: torch.Tensor
    mixed: torch.Tensor
    draws: Any


def drawn_pairs(batch: Batch, key: int, count: int, *, p: float) -> Pairs:
    """Pair positions 2k and 2k + 1 if both are in the batch, valid, and not mixed yet.

    Such a pair is mixed with probability `p`; otherwise the rows have their partners all the same.

    Args:
        batch: ``epoch`` and ``position`` int64 [B], in the order of a loader; perhaps ``valid``
            bool [B] and ``label_weight`` float32 [B].
        key: What `pipeline.rng.batch_key` gave for the step.
        count: How many numbers to draw for each pair, by its first position.
        p: Probability that a pair is mixed.
    """
    import torch

    draws = uniforms({**batch, "position": batch["position"] & -2}, key, count + 1)
    positions, epochs = batch["position"], batch["epoch"]
    rows = torch.arange(len(positions), device=positions.device)
    other = (rows + 1 - 2 * (positions & 1)).clamp(0, len(positions) - 1)
    mixed = (positions[other] == positions ^ 1) & (epochs[other] == epochs)
    if "valid" in batch:
        mixed &= batch["valid"] & batch["valid"][other]
    if "label_weight" in batch:
        whole = batch["label_weight"] == 1
        mixed &= whole & whole[other]
    partner = other.where(mixed, rows)
    return Pairs(partner, mixed & torch.as_tensor(draws[count] < p), draws[:count])


def check_mixable(batch: Batch, step: str, *, refused: tuple[str, ...]) -> None:
    """Refuse a batch whose fields would say what is no longer in its images.

    A batch with boxes needs no ``label``.

    Raises:
        ValueError: The images differ in size, there are fields that cannot be mixed, or a
            ``label`` is missing or no class.
    """
    prefix = f"augment.device.{step}"
    if isinstance(batch["image"], list):
        raise ValueError(
            f"{prefix}: images are a list, and two are mixed pixel by pixel; give them one size "
            f"and stack them, or set {prefix}=null"
        )
    for field in refused:
        if field in batch:
            raise ValueError(
                f"{prefix}: the batch has {field}, for which a mixture of two images has no "
                f"meaning; set {prefix}=null, or drop them with dataset.keys={{{field}:null}}"
            )
    label = batch.get("label")
    if label is None and "boxes" in batch:
        return
    if label is None or isinstance(label, list) or label.ndim != 1 or label.is_floating_point():
        raise ValueError(
            f"{prefix}: needs a label for each image, int64 [B], and the batch has "
            f"{'none' if label is None else 'another'}; set {prefix}=null"
        )


def mixed_labels(batch: Batch, pairs: Pairs, share: torch.Tensor) -> Batch:
    """Make the fields that say what share of an image is of which class.

    Args:
        batch: ``label`` int64 [B]; perhaps what an earlier step has mixed.
        pairs: Who is mixed with whom.
        share: How much of the row's own image is left, float [B], where it is mixed.

    Returns:
        ``label_other`` int64 [B], if there is a ``label``, and ``label_weight`` float32 [B].
    """
    weight = batch.get("label_weight", 1.0)
    mixed: Batch = {}
    if "label" in batch:
        label = batch["label"]
        other = batch.get("label_other", label)
        mixed["label_other"] = label[pairs.partner].where(pairs.mixed, other)
    return {**mixed, "label_weight": share.float().where(pairs.mixed, weight)}


def joined_boxes(batch: Batch, pairs: Pairs) -> Batch:
    """Join the boxes of both of a pair, each row's own first.

    Args:
        batch: ``boxes`` and ``box_*``: lists of B tensors [N, ...], or padded [B, N, ...] with
            ``_mask`` bool [B, N] and ``_lengths`` int64 [B].
        pairs: Who is mixed with whom.

    Returns:
        These fields; padded ones are [B, 2 N, ...], so that no shape depends on the draws.
    """
    import torch

    fields = [name for name in batch if name == "boxes" or name.startswith("box_")]
    joined: Batch = {}
    in_lists = isinstance(batch["boxes"], list)
    # Where there are none, nothing waits for the device.
    partners = pairs.partner.where(pairs.mixed, -1).tolist() if in_lists else []
    for name in fields:
        values = batch[name]
        if isinstance(values, list):
            joined[name] = [
                values[row] if other < 0 else torch.cat([values[row], values[other]])
                for row, other in enumerate(partners)
            ]
        elif f"{name}_mask" in batch:
            mask = batch[f"{name}_mask"]
            there = torch.cat([mask, mask[pairs.partner] & pairs.mixed[:, None]], 1)
            order = (~there).to(torch.uint8).argsort(dim=1, stable=True)
            both = torch.cat([values, values[pairs.partner]], 1)
            places = order.reshape(*order.shape, *[1] * (both.ndim - 2)).expand_as(both)
            joined |= {
                name: both.gather(1, places),
                f"{name}_mask": there.gather(1, order),
                f"{name}_lengths": there.sum(1),
            }
    return joined
