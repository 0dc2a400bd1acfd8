"""Collate nested dicts, lists of arrays, and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Collate
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline import collating
from penstock.pipeline.collating import is_array, to_array

RULES = ("stack", "list", "pad", "concat", "nodes", "edges")
_GRAPH, _COUNT = "graph", "num_nodes"


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

    Graphs become one graph of many parts, as in PyTorch Geometric. A dict with ``edges`` gets
    ``graph`` int64 [sum of N], the row of every node, and ``num_nodes`` int64 [B]. The number of
    nodes of a sample comes from its fields of rule ``nodes``, or from a number ``num_nodes``.
    Numbers become tensors [B], other values lists of B.

    Args:
        rules: Rules by path, such as ``{graph: {edges: edges, x: nodes}, points: list}``; a path
            may also be written with dots.
        value: Fill value of padding.
    """

    overhead = staticmethod(collating.count_padding)

    def __init__(self, *, rules: Mapping[str, Any] | None = None, value: float = 0) -> None:
        self.rules = _flat(rules or {}, "")
        self.value = value

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples of one structure; raise ValueError if they differ or a rule fails."""
        found: set[str] = set()
        keys = [str(s.get("key", f"row {row}")) for row, s in enumerate(samples)]
        batch = self._dict(samples, "", keys, found)
        for path in self.rules.keys() - found:
            _refuse(f"nothing at {path!r}, which has a rule; paths: {', '.join(sorted(found))}")
        return batch

    def _dict(
        self, parts: Sequence[Any], path: str, keys: Sequence[str], found: set[str]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, values in collating.to_columns(parts, keys=keys, path=path).items():
            inner = f"{path}{name}"
            rule = self.rules.get(inner)
            found.add(inner)
            if any(isinstance(value, dict) for value in values):
                if not all(isinstance(value, dict) for value in values):
                    _refuse(f"{inner!r} is a dict in some samples only")
                if rule:
                    _refuse(f"{inner!r} is a dict and has the rule {rule!r}; name a field in it")
                new = {name: self._dict(values, f"{inner}.", keys, found)}
            elif rule == "edges":
                new = self._edges(parts, name, path, keys)
            else:
                new = self._leaf(values, name, inner, keys)
            for added in new.keys() & parts[0].keys() - {name, _COUNT}:
                _refuse(f"'{path}{added}' is in the samples, and {inner!r} adds it; rename one")
            made |= new
        return made

    def _leaf(self, values: list[Any], name: str, path: str, keys: Sequence[str]) -> dict[str, Any]:
        rule = self.rules.get(path)
        if rule is None:
            if all(map(is_array, values)):
                rule = "stack"
            elif not any(is_array(value) or isinstance(value, (list, tuple)) for value in values):
                return {name: collating.from_values(values)}
        if rule in (None, "list"):
            return {name: [_copied(value) for value in values]}
        arrays = [_array(value, path, rule, key) for value, key in zip(values, keys, strict=True)]
        if rule == "stack":
            remedy = f"a transform, or by a rule: collate.rules={{{path}: pad}}, or another rule"
            return {name: collating.from_arrays(path, arrays, keys, remedy=remedy)}
        # An empty list lacks a shape and dtype; it takes another sample's.
        first = next((array for array in arrays if array.size), arrays[0])
        arrays = [array if len(array) else first[:0] for array in arrays]
        if rule == "pad":
            made = collating.padded(
                "collate/nested", path, arrays, keys, axes=1, size_of=int, fill=self.value,
                remedy="see collate.rules",
            )  # fmt: skip
            return {f"{name}{key.removeprefix(path)}": value for key, value in made.items()}
        where, remedy = f"collate/nested: {path!r}", "only the first axis may differ"
        collating.refuse_unlike(where, arrays, keys, free_axes=1, remedy=remedy)
        return {name: np.concatenate(arrays)}

    def _edges(
        self, parts: Sequence[Any], name: str, path: str, keys: Sequence[str]
    ) -> dict[str, Any]:
        counts = [self._nodes(part, path, key) for part, key in zip(parts, keys, strict=True)]
        edges, offset = [], 0
        for part, count, key in zip(parts, counts, keys, strict=True):
            ends = _array(part[name], f"{path}{name}", "edges", key)
            ends = ends if ends.size else np.zeros((2, 0), np.int64)
            where = f"sample {key!r}: '{path}{name}'"
            if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
                what = f"{ends.dtype} {list(ends.shape)}"
                _refuse(f"{where} is {what}, expected whole numbers [2, edges]")
            if ends.size and not (0 <= ends.min() and ends.max() < count):
                nodes = f"nodes {ends.min()} to {ends.max()}"
                _refuse(f"{where} has {nodes}, expected 0 to {count - 1}")
            edges.append(ends.astype(np.int64) + offset)
            offset += count
        return {
            name: np.concatenate(edges, axis=1),
            _GRAPH: np.repeat(np.arange(len(parts)), counts),
            _COUNT: np.array(counts),
        }

    def _nodes(self, part: Mapping[str, Any], path: str, key: str) -> int:
        """Count the nodes of one sample's graph."""
        counts = {
            name: len(_array(value, f"{path}{name}", "nodes", key))
            for name, value in part.items()
            if self.rules.get(f"{path}{name}") == "nodes"
        }
        if _COUNT in part:
            counts[_COUNT] = int(part[_COUNT])
        if not counts:
            remedy = f"set collate.rules={{{path}x: nodes}}, or give samples '{path}{_COUNT}'"
            _refuse(f"the number of nodes is unknown; {remedy}")
        if len(set(counts.values())) > 1:
            _refuse(f"numbers of nodes differ in sample {key!r}: {counts}")
        return counts.popitem()[1]


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"collate/nested: {text}")


def _flat(rules: Mapping[str, Any], path: str) -> dict[str, str]:
    """Flatten rules to a rule by dotted path."""
    flat: dict[str, str] = {}
    for name, rule in rules.items():
        if isinstance(rule, Mapping):
            flat |= _flat(rule, f"{path}{name}.")
        elif rule in RULES:
            flat[f"{path}{name}"] = rule
        else:
            _refuse(f"rule {rule!r} for '{path}{name}'; expected {', '.join(RULES)}")
    return flat


def _array(value: Any, path: str, rule: str, key: str) -> NDArray[Any]:
    """Convert a leaf with an array rule, an array or a list of numbers, to an array."""
    if is_array(value):
        return to_array(value)
    if isinstance(value, (list, tuple)):
        with suppress(ValueError):  # lists of several lengths
            array = np.array(value) if len(value) else np.zeros(0, np.int64)
            if array.dtype.kind in "biuf":
                return array
    what = f"is not an array in sample {key!r} but {type(value).__name__}"
    _refuse(f"{path!r} has the rule {rule!r} and {what}; use the rule list")


def _copied(value: Any) -> Any:
    if is_array(value):
        return np.array(to_array(value))
    if isinstance(value, (list, tuple)):
        made = [_copied(item) for item in value]
        return tuple(made) if type(value) is tuple else made
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value
