"""Tables as others write them: what Parquet and Arrow files are made of in tests."""

import json

import numpy as np
import pyarrow as pa

CLASSES = ("cat", "dog", "ürm")


def images(n, seed=0, largest=400):
    """Bytes of several lengths, one of them none."""
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(rng.integers(0, largest)) if i % 11 else 0) for i in range(n)]


def hub_table(encoded, names=CLASSES, **columns):
    """A table as the public hubs lay out images and classes; labels count through the classes."""
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
    """What a storage makes of `hub_table`, keys by row number."""
    return [
        (f"{start + i:08d}", {"image": b, "label": i % len(CLASSES)}) for i, b in enumerate(encoded)
    ]


def odd_columns():
    """Columns of many types, and the fields that three records have by them."""
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
