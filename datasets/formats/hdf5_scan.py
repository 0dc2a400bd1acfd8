"""What lies where in HDF5 files, as the library says it: the child process of `hdf5_process`.

A damaged file can keep the library busy for ever, or end its process. So it is only asked here,
in a process that an alarm ends, and only for shapes, types and places; no sample is read by it.
Nothing outside the file is followed: no link to another file, no external or virtual storage.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from datasets.formats.hdf5_objects import (
    BESIDE_ENDINGS,
    CLASS_NAMES,
    KEY_NAMES,
    PACKED,
    Refused,
    class_names,
    exists,
    follow,
    label_attribute,
    link_text,
    text_attribute,
    value_type,
)

HEADER = struct.Struct("<II")  # bytes of JSON, bytes of places
_MEMORY_BYTES = 4 << 30
_MOST_NAMES = 1000
# Before 2.0 the places of chunks behind a user block were given without it.
_USER_BLOCK_VERSION = (2, 0, 0)


def serve(deadline_s: int) -> None:
    """Answer requests, a JSON object a line on standard input, on standard output."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft > _MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    scan = _Scan(answers, deadline_s)
    for line in sys.stdin.buffer:
        scan.answer(json.loads(line))


class _Scan:
    """One file after the other.

    Args:
        answers: Where messages go.
        deadline_s: How long the library may take between two signs of life.
    """

    def __init__(self, answers: Any, deadline_s: int) -> None:
        self._answers = answers
        self._deadline_s = deadline_s
        self._file_bytes = 0

    def answer(self, request: dict[str, Any]) -> None:
        """Send what a request asks for, or why it cannot be had."""
        self._alive()
        try:
            if request.pop("look"):
                self._look(**request)
            else:
                self._list(**request)
            self._send({"kind": "done"})
        except Refused as error:
            self._send({"kind": "refused", "cause": str(error)})
        except BlockingIOError:
            self._send({"kind": "refused", "cause": "it is being written (locked); close it there"})
        except Exception as error:  # of any kind: the library's own, for whatever is damaged
            text = " ".join(str(error).split())
            if "already open for write" in text:
                cause = "it is being written, or was not closed; close it there, or: h5clear -s"
                self._send({"kind": "refused", "cause": cause})
            else:
                self._send({"kind": "damaged", "cause": text or type(error).__name__})

    def _list(self, path: str, group: str) -> None:
        """Send the names of the groups in a group."""
        import h5py

        self._file_bytes = os.path.getsize(path)
        with h5py.File(path, "r") as file:
            top = follow(file.id, group)
            members = self._members(top) if isinstance(top, h5py.h5g.GroupID) else ()
            names = [name for name, kind in members if kind == "group"]
            self._send({"kind": "groups", "names": names[:_MOST_NAMES]})

    def _look(self, path: str, group: str, fields: list[str] | None) -> None:
        import h5py

        self._file_bytes = os.path.getsize(path)
        with h5py.File(path, "r") as file:
            creation = file.id.get_create_plist()
            self._base = int(creation.get_userblock())
            if creation.get_sizes()[0] != 8:
                raise Refused("its addresses have not 8 bytes; copy it with h5py into a new file")
            top = follow(file.id, group)
            if not isinstance(top, h5py.h5g.GroupID):
                raise Refused(f"{group!r} is a dataset, expected a group that holds datasets")
            about: dict[str, Any] = {"base": self._base}
            about["class_names"] = class_names(top) or class_names(file.id)
            about["packed"] = text_attribute(file.id, PACKED)
            members = list(self._members(top))
            if fields is not None and exists(top, fields[0]):
                about["layout"] = "arrays"
                self._send({"kind": "file", **about})
                for name in fields:
                    self._send_dataset(follow(top, name), None, name)
                for name, kind in members:
                    if kind == "dataset" and name not in fields and self._is_beside(name, fields):
                        self._send_dataset(follow(top, name), None, name)
            elif any(kind == "dataset" for _, kind in members) and fields is None:
                about["layout"] = "arrays"
                self._send({"kind": "file", **about})
                for name, kind in members:
                    if kind == "dataset":
                        self._send_dataset(follow(top, name), None, name)
                    elif kind != "group":
                        raise Refused(link_text(name, kind))
            elif members and all(kind == "group" for _, kind in members):
                about["layout"] = "groups"
                self._send({"kind": "file", **about})
                for name, _ in members:
                    self._send_sample(top, name, fields)
            else:
                inside = ", ".join(name for name, _ in members[:8]) or "nothing"
                raise Refused(
                    f"no dataset found in {'/' + group!r}, but {inside}; expected one for each "
                    f"field, or a group for each sample; name the group in dataset.storage.path: "
                    f"data.h5/group"
                )

    def _members(self, group: Any) -> Iterator[tuple[str, str]]:
        """Names in a group and what they are, links not followed."""
        import h5py

        found: list[tuple[bytes, Any]] = []

        def see(name: bytes, info: Any) -> None:
            found.append((name, info.type))
            if len(found) % 1024 == 0:
                self._alive()
            if len(found) > self._file_bytes:
                raise Refused("a group leads in a circle")

        group.links.iterate(see, info=True)
        for number, (raw, kind) in enumerate(found):
            if number % 256 == 0:
                self._alive()
            name = raw.decode("utf-8", "backslashreplace")
            if kind == h5py.h5l.TYPE_HARD:
                what = h5py.h5o.get_info(group, raw).type
                named = {h5py.h5o.TYPE_DATASET: "dataset", h5py.h5o.TYPE_GROUP: "group"}
                if what in named:
                    yield name, named[what]
            else:
                yield name, "external link" if kind == h5py.h5l.TYPE_EXTERNAL else "soft link"

    def _send_sample(self, top: Any, name: str, fields: list[str] | None) -> None:
        """The datasets in the group of a sample."""
        group = follow(top, name)
        label = label_attribute(group)
        names = fields
        if names is None:
            members = list(self._members(group))
            for member, kind in members:
                if "link" in kind:
                    raise Refused(link_text(f"{name}/{member}", kind))
            names = [member for member, kind in members if kind == "dataset"]
        self._send({"kind": "sample", "name": name, "label": label})
        for field in names:
            if fields is None or exists(group, field):
                self._send_dataset(follow(group, field), name, field)

    def _is_beside(self, name: str, fields: list[str]) -> bool:
        """Whether a dataset tells more of the fields: keys, names of classes, shapes."""
        stem, dot, ending = name.rpartition(".")
        beside = stem in fields and dot + ending in BESIDE_ENDINGS
        return beside or name in CLASS_NAMES or name in KEY_NAMES

    def _send_dataset(self, dataset: Any, sample: str | None, name: str) -> None:
        import h5py

        self._alive()
        shown = name if sample is None else f"{sample}/{name}"
        if not isinstance(dataset, h5py.h5d.DatasetID):
            raise Refused(f"{shown!r} is a group, expected a dataset")
        plist = dataset.get_create_plist()
        layout = plist.get_layout()
        if layout == h5py.h5d.VIRTUAL or plist.get_external_count():
            kind = "virtual: parts of other files" if layout == h5py.h5d.VIRTUAL else "external"
            raise Refused(f"the data of {shown!r} lies outside the file ({kind}); copy it into one")
        space = dataset.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise Refused(f"{shown!r} is empty: it has a type and no value; leave it out")
        shape = list(space.shape)
        value = value_type(dataset.get_type(), shown)
        filters = [list(plist.get_filter(i)) for i in range(plist.get_nfilters())]
        chunks, places = None, np.zeros((0, 3), np.int64)
        if layout == h5py.h5d.CHUNKED:
            if self._base and h5py.version.hdf5_version_tuple < _USER_BLOCK_VERSION:
                raise Refused(f"{shown!r} is chunked behind a user block; update h5py to read it")
            chunks = list(plist.get_chunk())
            places = self._chunk_places(dataset, shape, chunks, shown)
        elif math.prod(shape):
            offset = dataset.get_offset()
            if offset is None:
                why = "is compact" if layout == h5py.h5d.COMPACT else "was never written"
                raise Refused(f"{shown!r} {why}; write it anew: h5repack -l CONTI")
            places = np.array([[offset, dataset.get_storage_size(), 0]], np.int64)
        message = {
            "kind": "array",
            "sample": sample,
            "name": name,
            "shape": shape,
            "chunks": chunks,
            "value": value,
            "filters": [
                [code, [int(v) for v in values], text.decode("utf-8", "replace")]
                for code, _, values, text in filters
            ],
            "class_names": class_names(dataset),
            "packed": text_attribute(dataset, PACKED),
        }
        self._send(message, places)

    def _chunk_places(self, dataset: Any, shape: list[int], chunks: list[int], shown: str) -> Any:
        """Offset, stored bytes and filter mask of every chunk, int64 [n, 3], in row-major order."""
        if len(chunks) != len(shape) or min(chunks) < 1:
            raise Refused(f"{shown!r} has chunks {chunks} and the shape {shape}")
        grid = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
        count = math.prod(grid)
        if count > self._file_bytes:
            raise Refused(f"{shown!r} says that it has {count:,} chunks, in a smaller file")
        places = np.full((count, 3), -1, np.int64)
        steps = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
        seen = 0

        def see(info: Any) -> None:
            nonlocal seen
            seen += 1
            if seen % 1024 == 0:
                self._alive()
            if seen > count:
                raise Refused(f"{shown!r} has more chunks than its shape has room for")
            at = 0
            for offset, chunk, length, step in zip(
                info.chunk_offset, chunks, grid, steps, strict=True
            ):
                if offset // chunk >= length:
                    return
                at += offset // chunk * step
            places[at] = info.byte_offset, info.size, info.filter_mask

        dataset.chunk_iter(see)
        if missing := int((places[:, 0] < 0).sum()):
            raise Refused(
                f"{missing:,} of {count:,} chunks of {shown!r} were never written; write them, or "
                f"make the dataset as long as its data"
            )
        return places

    def _alive(self) -> None:
        """Put off the alarm, whose signal ends a process that is anywhere."""
        signal.alarm(self._deadline_s)

    def _send(self, message: dict[str, Any], places: Any = None) -> None:
        signal.alarm(0)  # the reader may take its time
        text = json.dumps(message).encode()
        blob = b"" if places is None else places.tobytes()
        self._answers.write(HEADER.pack(len(text), len(blob)) + text + blob)
        if message["kind"] not in ("array", "sample"):
            self._answers.flush()
        self._alive()
