"""Collate nested dicts, lists of arrays, and graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Collate
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline import collating
from penstock.pipeline.collating import is_array

RULES = ("stack", "list", "pad", "concat", "nodes", "edges")


@register("collate", "nested")
class NestedCollate(Collate):
    """Collate nested dicts into dicts of tensors, with rules by path for ragged data and graphs.

    ==========  ================================================================================
    ``stack``   arrays of one shape become a tensor [B, ...]; the default for arrays
    ``list``    a list of B tensors of any shapes; the default for lists
    ``pad``     padded along the first axis, with ``<name>_lengths`` and ``<name>_mask``
    ``concat``  concatenated along the first axis: features of edges
    ``nodes``   concatenated along the first axis: features of nodes, [sum of N, ...]
    ``edges``   integer [2, E], node numbers of a sample: int64 [2, sum of E], offset in row i
                by the number of nodes of the rows before it
    ==========  ================================================================================

    A dict with ``edges`` gets ``graph`` int64 [sum of N], the row of every node, and ``num_nodes``
    int64 [B]. Numbers become tensors [B], other values lists of B.

    Args:
        rules: Rules by path, such as ``{graph: {edges: edges, x: nodes}, points: list}``; a path
            may also be written with dots.
        value: Fill value of padding.
    """

    overhead = staticmethod(collating.count_padding)

    def __init__(self, *, rules: Mapping[str, Any] | None = None, value: float = 0) -> None:
        self.rules = {".".join(path): rule for path, rule in _leaves(rules or {})}
        self.value = value
        for path, rule in self.rules.items():
            if rule not in RULES:
                _refuse(f"rule {rule!r} for {path!r}; expected {', '.join(RULES)}")

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples of one structure; raise ValueError if they differ or a rule fails."""
        flat = [{".".join(path): value for path, value in _leaves(each)} for each in samples]
        columns = collating.to_columns(flat)
        keys = collating.batch_keys(columns, len(samples))
        if unused := self.rules.keys() - columns.keys():
            _refuse(f"no value at {min(unused)!r}, which has a rule; has {', '.join(columns)}")
        batch: Batch = {}
        for (*outer, name), _ in _leaves(samples[0]):
            path = ".".join([*outer, name])
            made = self._collated(path, columns, keys)
            if added := made.keys() & columns.keys() - {path}:
                _refuse(f"{path!r} adds {min(added)!r}, which the samples have; rename one")
            place = batch
            for part in outer:
                place = place.setdefault(part, {})
            place |= {each.removeprefix(path.removesuffix(name)): made[each] for each in made}
        return batch

    def _collated(self, path: str, columns: dict[str, list[Any]], keys: list[str]) -> Batch:
        """Return a column by its rule, and the fields that the rule adds, by path."""
        values, rule = columns[path], self.rules.get(path)
        if rule is None and all(map(is_array, values)):
            rule = "stack"
        if rule is None and not any(is_array(v) or isinstance(v, (list, tuple)) for v in values):
            return {path: collating.from_values(path, values)}
        if rule in (None, "list"):
            return {path: copy.deepcopy(values)}
        arrays = _arrays(values, path, keys)
        if rule == "stack":
            remedy = f"a transform, or by a rule: collate.rules={{{path}: pad}}, or another rule"
            return {path: collating.from_arrays(path, arrays, keys, remedy=remedy)}
        if rule == "pad":
            remedy = "see collate.rules"
            return dict(collating.padded(path, arrays, keys, fill=self.value, remedy=remedy))
        if rule == "edges":
            return self._edges(path, arrays, columns, keys)
        where, remedy = f"collate/nested: {path!r}", "only the first axis may differ"
        collating.refuse_unlike(where, arrays, keys, free_axes=1, remedy=remedy)
        return {path: np.concatenate(arrays)}

    def _edges(
        self, path: str, arrays: list[NDArray[Any]], columns: dict[str, list[Any]], keys: list[str]
    ) -> Batch:
        graph = path[: path.rfind(".") + 1]
        nodes = [each for each, rule in self.rules.items() if rule == "nodes"]
        own = [each for each in nodes if each[: each.rfind(".") + 1] == graph]
        counts = {tuple(map(len, columns[each])) for each in own}
        if len(counts) != 1:
            text = f"{path!r} needs features of nodes, of one length in each sample"
            _refuse(f"{text}; set collate.rules={{{graph}x: nodes}}")
        num_nodes = np.array(counts.pop())
        firsts, edges = np.cumsum(num_nodes) - num_nodes, []
        for ends, key, count, first in zip(arrays, keys, num_nodes, firsts, strict=True):
            ends = ends if ends.size else np.zeros((2, 0), np.int64)
            is_pairs = ends.ndim == 2 and len(ends) == 2 and ends.dtype.kind in "iu"
            if not is_pairs or not ((ends >= 0) & (ends < count)).all():
                what = f"{ends.dtype} {list(ends.shape)}, expected integers [2, edges]"
                _refuse(f"sample {key!r}: {path!r} is {what} from 0 to {count - 1}")
            edges.append(ends.astype(np.int64) + first)
        rows = np.repeat(np.arange(len(keys)), num_nodes)
        added = {f"{graph}graph": rows, f"{graph}num_nodes": num_nodes}
        return {path: np.concatenate(edges, axis=1), **added}


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"collate/nested: {text}")


def _leaves(nested: Mapping[Any, Any], *outer: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and value of each leaf of nested dicts."""
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, *outer, str(name))
        else:
            yield (*outer, str(name)), value


def _arrays(values: list[Any], path: str, keys: list[str]) -> list[NDArray[Any]]:
    """Convert leaves with an array rule, arrays or lists of numbers, to arrays."""
    arrays = []
    for value, key in zip(values, keys, strict=True):
        try:
            array = collating.to_array(value) if is_array(value) else np.array(value)
        except ValueError:  # lists of several lengths
            array = np.array(None)
        if not array.ndim or array.dtype.kind not in "biufc":
            what = f"is not an array in sample {key!r} but {type(value).__name__}"
            _refuse(f"{path!r} {what}; use the rule list")
        arrays.append(array)
    # An empty list lacks a shape and dtype; it takes another sample's.
    first = next((array for array in arrays if array.size), arrays[0])
    return [array if len(array) else first[:0] for array in arrays]
