"""Collate nested dicts, lists of arrays, and graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import CollateCapabilities
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline.collating import (
    batch_keys,
    count_padding,
    from_arrays,
    from_values,
    is_array,
    padded,
    refuse_unlike,
    to_array,
    to_columns,
)

RULES = ("stack", "list", "pad", "concat", "nodes", "edges")
_GRAPH, _COUNT = "graph", "num_nodes"


@register("collate", "nested")
class NestedCollate:
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

    def __init__(self, *, rules: Mapping[str, Any] | None = None, value: float = 0) -> None:
        self.rules = dict(_flat(rules or {}, ""))
        self.value = value

    @property
    def capabilities(self) -> CollateCapabilities:
        """Return the padding counter."""
        return CollateCapabilities(overhead=count_padding)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples of one structure into a batch of that structure.

        Raise ValueError with path and samples if structures, shapes or types differ, or a rule does
        not fit.
        """
        found: set[str] = set()
        keys = batch_keys({"key": [s["key"] for s in samples if "key" in s]}, len(samples))
        batch = self._dict(samples, "", keys, found)
        for path in self.rules.keys() - found:
            raise ValueError(
                f"collate/nested: nothing at {path!r}, which has a rule; paths: "
                f"{', '.join(sorted(found))}"
            )
        return batch

    def _dict(
        self, parts: Sequence[Any], path: str, keys: Sequence[str], found: set[str]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, values in to_columns(parts, keys=keys, path=path).items():
            inner = f"{path}{name}"
            found.add(inner)
            if any(isinstance(value, dict) for value in values):
                if not all(isinstance(value, dict) for value in values):
                    raise ValueError(f"collate/nested: {inner!r} is a dict in some samples only")
                if inner in self.rules:
                    raise ValueError(
                        f"collate/nested: {inner!r} is a dict and has the rule "
                        f"{self.rules[inner]!r}; give rules to its fields"
                    )
                new = {name: self._dict(values, f"{inner}.", keys, found)}
            elif self.rules.get(inner) == "edges":
                new = self._edges(parts, name, path, keys)
            else:
                new = self._leaf(values, name, inner, keys)
            for key, value in new.items():
                _put(made, parts, key, value, name, path)
        return made

    def _leaf(self, values: list[Any], name: str, path: str, keys: Sequence[str]) -> dict[str, Any]:
        rule = self.rules.get(path)
        if rule is None:
            if all(is_array(value) for value in values):
                rule = "stack"
            elif any(is_array(value) or isinstance(value, (list, tuple)) for value in values):
                rule = "list"
            else:
                return {name: from_values(values)}
        if rule == "list":
            return {name: [_copied(value) for value in values]}
        arrays = [_array(value, path, rule, key) for value, key in zip(values, keys, strict=True)]
        if rule == "stack":
            remedy = (
                f"a transform, or set collate.rules={{{path}: pad}}, or another of "
                f"{', '.join(RULES)}"
            )
            return {name: from_arrays(path, arrays, keys, remedy=remedy)}
        arrays = _filled_in(arrays)
        if rule == "pad":
            made = padded(
                "collate/nested", path, arrays, keys, axes=1, size_of=lambda longest: longest,
                fill=self.value, remedy="see collate.rules",
            )  # fmt: skip
            return {f"{name}{key.removeprefix(path)}": value for key, value in made.items()}
        return {name: _joined(arrays, path, keys)}

    def _edges(
        self, parts: Sequence[Any], name: str, path: str, keys: Sequence[str]
    ) -> dict[str, Any]:
        counts = np.array(
            [self._nodes(part, path, key) for part, key in zip(parts, keys, strict=True)], np.int64
        )
        edges: list[NDArray[np.int64]] = []
        for part, count, key in zip(parts, counts.tolist(), keys, strict=True):
            ends = _array(part[name], f"{path}{name}", "edges", key)
            if ends.size == 0:
                ends = np.zeros((2, 0), np.int64)
            if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
                raise ValueError(
                    f"collate/nested: '{path}{name}' is {ends.dtype} {list(ends.shape)} in sample "
                    f"{key!r}, expected whole numbers [2, edges]"
                )
            if ends.size and not (0 <= ends.min() and ends.max() < count):
                raise ValueError(
                    f"collate/nested: '{path}{name}' has nodes {ends.min()} to {ends.max()} in "
                    f"sample {key!r}, which has {count} nodes, numbered from 0"
                )
            edges.append(ends.astype(np.int64))
        offsets = np.cumsum(counts) - counts
        raised = [ends + offset for ends, offset in zip(edges, offsets.tolist(), strict=True)]
        return {
            name: np.concatenate(raised, axis=1),
            _GRAPH: np.repeat(np.arange(len(parts)), counts),
            _COUNT: counts,
        }

    def _nodes(self, part: Mapping[str, Any], path: str, key: str) -> int:
        said = {
            name: len(_array(value, f"{path}{name}", "nodes", key))
            for name, value in part.items()
            if self.rules.get(f"{path}{name}") == "nodes"
        }
        if _COUNT in part:
            said[_COUNT] = int(part[_COUNT])
        if not said:
            raise ValueError(
                f"collate/nested: no number of nodes beside the edges; give a field of nodes its "
                f"rule, collate.rules={{{path}x: nodes}}, or give the samples a "
                f"number '{path}{_COUNT}'"
            )
        if len(set(said.values())) > 1:
            raise ValueError(f"collate/nested: numbers of nodes differ in sample {key!r}: {said}")
        return next(iter(said.values()))


def _flat(rules: Mapping[str, Any], path: str) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, rule in rules.items():
        if isinstance(rule, Mapping):
            flat += _flat(rule, f"{path}{name}.")
        elif rule in RULES:
            flat.append((f"{path}{name}", rule))
        else:
            raise ValueError(
                f"collate/nested: rule {rule!r} for '{path}{name}'; expected {', '.join(RULES)}"
            )
    return flat


def _put(
    made: dict[str, Any], parts: Sequence[Any], key: str, value: Any, name: str, path: str
) -> None:
    """Add a field; refuse a derived field that the samples already have."""
    added = key != name and not (key == _COUNT and _COUNT in parts[0])
    if added and key in parts[0]:
        raise ValueError(
            f"collate/nested: '{path}{key}' is in the samples, and the rule of "
            f"'{path}{name}' adds it too; rename the field"
        )
    made[key] = value


def _array(value: Any, path: str, rule: str, key: str) -> NDArray[Any]:
    """Convert a leaf with an array rule, an array or a list of numbers, to an array."""
    if is_array(value):
        return to_array(value)
    if isinstance(value, (list, tuple)):
        try:
            array = np.array(value if len(value) else np.zeros(0, np.int64))
        except ValueError:  # lists of several lengths
            array = np.array(None)
        if array.ndim and array.dtype.kind in "biuf":
            return array
    raise ValueError(
        f"collate/nested: {path!r} has the rule {rule!r} and is a "
        f"{type(value).__name__} in sample {key!r}; use the rule list"
    )


def _filled_in(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Give empty arrays the shape and dtype of the others, which lists cannot express."""
    first = next((array for array in arrays if array.size), arrays[0])
    nothing = np.zeros((0, *first.shape[1:]), first.dtype)
    return [array if array.size or len(array) else nothing for array in arrays]


def _joined(arrays: list[Any], path: str, keys: Sequence[str]) -> Any:
    remedy = "joined arrays may differ in their first axis only"
    refuse_unlike(f"collate/nested: {path!r}", arrays, keys, free_axes=1, remedy=remedy)
    return np.concatenate(arrays)


def _copied(value: Any) -> Any:
    if is_array(value):
        return np.array(to_array(value))
    made: Callable[[Any], Any] = type(value) if type(value) in (list, tuple) else list
    if isinstance(value, (list, tuple)):
        return made([_copied(item) for item in value])
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value
