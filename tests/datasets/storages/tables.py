"""Tables of the kinds that others write, as Parquet and Arrow files."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.parquet import ParquetStorage

CLASSES = ("cat", "dog", "ürm")


def write_parquet(table, path, rows=10, **options):
    pq.write_table(table, path, row_group_size=rows, **options)


def write_arrow(table, path, rows=10, *, new=pa.ipc.new_file, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)


FORMS = {"parquet": (write_parquet, ParquetStorage), "arrow": (write_arrow, ArrowStorage)}


def images(n, seed=0, largest=400):
    """Return byte strings of several lengths; some are empty."""
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(rng.integers(0, largest)) if i % 11 else 0) for i in range(n)]


def hub_table(encoded, names=CLASSES, **columns):
    """Return a table in the layout of the public hubs; its labels cycle through the classes."""
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    about = json.dumps({"info": {"features": features}})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "image": pa.array([{"bytes": b, "path": "/etc/passwd"} for b in encoded], kind),
            "label": pa.array([i % len(names) for i in range(len(encoded))], pa.int64()),
            **columns,
        }
    )
    return table.replace_schema_metadata({"huggingface": about})


def hub_records(encoded, start=0):
    """Return the records of `hub_table`, with row numbers as keys."""
    return [
        (f"{start + i:08d}", {"image": b, "label": i % len(CLASSES)}) for i, b in enumerate(encoded)
    ]


def odd_columns():
    """Return a table with columns of many types, and the fields of its three records."""
    table = pa.table(
        {
            "picture": pa.array([b"one", b"two", b"three"]),
            "name": ["a", "ü", "c"],
            "kind": pa.array(["dog", "cat", "dog"]).dictionary_encode(),
            "score": pa.array([0.5, None, 2.0], pa.float32()),
            "flag": [True, False, True],
            "boxes": pa.array([[[1, 2, 3, 4]], [], [[0, 0, 1, 1]] * 2],
                              pa.list_(pa.list_(pa.float32(), 4))),
            "ragged": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
            "matrix": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.uint8()))),
            "when": pa.array([1, 2, 3], pa.timestamp("ns", "UTC")),
        }
    )  # fmt: skip
    fields = [
        {
            "image": [b"one", b"two", b"three"][i],
            "label": [1, 0, 1][i],
            "score": [0.5, float("nan"), 2.0][i],
            "flag": i != 1,
            "boxes": np.array([[[1, 2, 3, 4]], [], [[0, 0, 1, 1]] * 2][i], "f4").reshape(-1, 4),
            "ragged": np.array([[1, 2], [], [3]][i], np.int16),
            "matrix": np.array([[1, 2], [3, 4]], np.uint8),
            "when": i + 1,
        }
        for i in range(3)
    ]
    return table, [(key, row) for key, row in zip(["a", "ü", "c"], fields, strict=True)]
