"""A decoded sample as bytes: its arrays lie beside the pickle of the rest (PEP 574)."""

from __future__ import annotations

import pickle
import struct

import numpy as np
from numpy.typing import NDArray

from datasets.sample import BadRecord, Sample


def pack(sample: Sample | BadRecord) -> list[bytes | memoryview]:
    """A sample as bytes: number of buffers, their lengths, then the buffers, the pickle first."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(sample, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    lengths = [view.nbytes for view in views]
    return [struct.pack(f"<{1 + len(views)}q", len(views), *lengths), *views]


def unpack(packed: NDArray[np.uint8]) -> Sample | BadRecord:
    """The sample again; its arrays own their memory."""
    (count,) = struct.unpack_from("<q", packed.data)
    lengths = struct.unpack_from(f"<{count}q", packed.data, 8)
    at = 8 + 8 * count
    views = []
    for length in lengths:
        views.append(packed[at : at + length])
        at += length
    sample: Sample | BadRecord = pickle.loads(
        views[0].data, buffers=[view.copy() for view in views[1:]]
    )
    return sample
