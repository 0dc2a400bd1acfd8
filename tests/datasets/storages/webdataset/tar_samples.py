"""Tar archives of samples as the standard library writes them."""

import io
import tarfile

import numpy as np


def samples(n, start=0):
    """Return keys and members by extension, of many sizes, an empty one among them."""
    return [
        (f"dir/{i:03d}", {"cls": b"%d" % (i % 3), "jpg": np.random.default_rng(i).bytes(i * 97)})
        for i in range(start, start + n)
    ]


def put(path, content, kind=tarfile.GNU_FORMAT, **options):
    """Write pairs of a key and its members, or of a name and its bytes, by the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as shard:
        for key, members in content:
            files = members.items() if isinstance(members, dict) else [(None, members)]
            for extension, data in files:
                info = tarfile.TarInfo(f"{key}.{extension}" if extension else key)
                info.size = len(data)
                for option, value in options.items():
                    setattr(info, option, value)
                shard.addfile(info, io.BytesIO(data))
    return str(path)


def expected(content):
    return [(k, {"label": int(m["cls"]), "image": m["jpg"]}) for k, m in content]


def read(storage, *rows):
    return storage.read(np.array(rows or range(len(storage))))
