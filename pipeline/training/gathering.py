"""What ranks computed for the records of a data set, in the order of the records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pipeline.training.distributed import World


def gather_in_order(results: Iterable[dict[str, Any]], world: World) -> dict[str, Any]:
    r"""What was computed batch by batch on all ranks, each position once, in global order.

    In evaluation, and with ``sampler=inference``, position i is record i::

        with torch.no_grad():
            results = (
                {**{name: batch[name] for name in ("position", "valid", "key")},
                 "logits": model(batch)}
                for batch in loader
            )
            predictions = gather_in_order(results, world)

    Rows that are not valid (padding, a rank without samples) are dropped. Every rank must call
    this, and gets the whole: all of it is held in memory, on the CPU.

    Args:
        results: For each batch of this rank ``position`` int64 [B], ``valid`` bool [B] if rows
            may not be, and what else is to be kept: tensors [B, ...] or lists of B. All batches
            have the same names, and rows of equal shapes.
        world: The ranks; ``World(0, 1, device)`` for one.

    Returns:
        ``position`` int64 [N], rising, and the rest by name: tensors [N, ...], lists of N.
        Positions that no rank has (skipped samples) are left out.

    Raises:
        ValueError: A position stands twice, or what ranks give does not go together; on every
            rank.
    """
    kept: dict[str, list[Any]] = {}
    cause = None
    try:
        for result in results:
            _keep(kept, result)
    except ValueError as error:  # said to all ranks: none must wait for this one
        cause = str(error)
    parts = world.gather(({name: _joined(values) for name, values in kept.items()}, cause))
    for _, said in parts:
        if said is not None:
            raise ValueError(said)
    columns = [column for column, _ in parts if column]
    if len({tuple(sorted(column)) for column in columns}) > 1:
        names = " and ".join(sorted({", ".join(sorted(column)) for column in columns}))
        raise ValueError(f"gather_in_order: ranks give different things: {names}")
    if not columns:
        return {"position": torch.zeros(0, dtype=torch.int64)}
    return _in_order({name: _joined([c[name] for c in columns]) for name in columns[0]})


def _keep(kept: dict[str, list[Any]], result: dict[str, Any]) -> None:
    """Add the valid rows of a batch."""
    if "position" not in result:
        raise ValueError(
            f"gather_in_order: a batch has {', '.join(sorted(result))}, and no 'position'; pass "
            f"on the loader's"
        )
    count = len(result["position"])
    valid = result.get("valid")
    rows = torch.arange(count) if valid is None else valid.cpu().nonzero()[:, 0]
    if kept and kept.keys() != result.keys() - {"valid"}:
        raise ValueError(
            f"gather_in_order: a batch has {', '.join(sorted(result.keys() - {'valid'}))}, those "
            f"before {', '.join(sorted(kept))}; give each the same"
        )
    for name, values in result.items():
        if name == "valid":
            continue
        if len(values) != count:
            raise ValueError(
                f"gather_in_order: {name!r} has {len(values)} rows, 'position' {count}; give one "
                f"row for each"
            )
        if isinstance(values, torch.Tensor):
            kept.setdefault(name, []).append(values.detach().cpu()[rows])
        else:
            kept.setdefault(name, []).append([values[row] for row in rows.tolist()])


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values)
    return [value for some in values for value in some]


def _in_order(columns: dict[str, Any]) -> dict[str, Any]:
    positions = columns["position"]
    order = positions.argsort(stable=True)
    ordered = positions[order]
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(
            f"gather_in_order: position {int(twice[0])} stands twice; give the batches of one "
            f"epoch, each rank its own"
        )
    return {
        name: values[order]
        if isinstance(values, torch.Tensor)
        else [values[row] for row in order.tolist()]
        for name, values in columns.items()
    }
