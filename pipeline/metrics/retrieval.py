"""How well images of an identity are found among others: CMC and mean average precision."""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import Metric

RANKS = (1, 5, 10)
_QUERIES_AT_ONCE = 256
_BOTH, _QUERY, _GALLERY = 0, 1, 2


class Retrieval(Metric):
    """Cumulative matching characteristics (CMC) and mean average precision (mAP).

    Each query ranks the gallery by the distance of the features. By the protocol of Zheng et al.,
    "Scalable Person Re-identification: A Benchmark" (Market-1501), ICCV 2015: what the query's own
    camera took of its identity, and what is nobody (an identity below 0), is left out of its
    ranking; a query of which nothing is left to find does not count. The average precision of a
    query is the mean over its finds of the precision there. Of equal distances, the lower
    position comes first.

    Without roles, each image is a query among all others.

    Everything is kept until the end; ranks are put together by the images' positions.
    """

    full_state_update = False
    higher_is_better = True
    rows: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        # Flat and of one type, so that a rank that saw nothing can be joined to the others.
        self.set_dtype(torch.float64)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(
        self,
        positions: torch.Tensor,
        features: torch.Tensor,
        identities: torch.Tensor,
        cameras: torch.Tensor,
        roles: torch.Tensor,
    ) -> None:
        """Add images.

        Args:
            positions: Unique over all ranks, int64 [B].
            features: float [B, D].
            identities: int64 [B]; below 0: nobody.
            cameras: int64 [B]; below 0: not known.
            roles: int64 [B]: 1 for a query, 2 for the gallery, 0 for both.
        """
        columns = [positions, identities, cameras, roles]
        marks = torch.stack([column.double() for column in columns], 1)
        size = marks.new_full((len(marks), 1), features.shape[1])
        self.rows.append(torch.cat([size, marks, features.double()], 1).flatten())

    def compute(self) -> dict[str, torch.Tensor]:
        """``rank_1``, ``rank_5``, ``rank_10`` and ``map``, each 0 .. 1; 0 if no query counts."""
        rows: Any = self.rows
        if not isinstance(rows, torch.Tensor):
            rows = torch.cat(rows) if len(rows) else torch.zeros(0, dtype=torch.float64)
        if not len(rows):
            return _figures(torch.zeros(0, max(RANKS)), torch.zeros(0))
        table = rows.double().reshape(-1, 5 + int(rows[0]))
        table = table[table[:, 1].argsort(stable=True)]
        _, positions, identities, cameras, roles = table[:, :5].long().unbind(1)
        features = table[:, 5:].float()
        gallery = ((roles != _QUERY) & (identities >= 0)).nonzero()[:, 0]
        queries = ((roles != _GALLERY) & (identities >= 0)).nonzero()[:, 0]
        found, precision = [], []
        for some in queries.split(_QUERIES_AT_ONCE):
            distances = torch.cdist(
                features[some], features[gallery], compute_mode="donot_use_mm_for_euclid_dist"
            )
            alike = identities[some][:, None] == identities[gallery]
            seen = (cameras[some][:, None] == cameras[gallery]) & (cameras[some][:, None] >= 0)
            left_out = (alike & seen) | (positions[some][:, None] == positions[gallery])
            for distance, hit, kept in zip(distances, alike, ~left_out, strict=True):
                hits = hit[kept][distance[kept].argsort(stable=True)]
                if hits.any():
                    ranks = hits.nonzero()[:, 0] + 1
                    counts = torch.arange(1, len(ranks) + 1, device=ranks.device)
                    precision.append((counts / ranks).double().mean())
                    found.append(torch.arange(1, max(RANKS) + 1, device=ranks.device) >= ranks[0])
        if not found:
            return _figures(torch.zeros(0, max(RANKS)), torch.zeros(0))
        return _figures(torch.stack(found).double(), torch.stack(precision))


def _figures(found: torch.Tensor, precision: torch.Tensor) -> dict[str, torch.Tensor]:
    count = max(len(precision), 1)
    figures = {f"rank_{rank}": found[:, rank - 1].sum() / count for rank in RANKS}
    return {**figures, "map": precision.sum() / count}
