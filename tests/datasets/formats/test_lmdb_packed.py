"""LMDB files that are laid out page by page, as the library sees them."""

from __future__ import annotations

import lmdb
import numpy as np
import pytest

from datasets.formats import lmdb_packed
from datasets.formats.lmdb_packed import append_values, finish_file
from datasets.formats.lmdb_pages import scan_lmdb

# Sizes at which a value leaves its leaf, and at which it needs one page more.
EDGES = [0, 1, 2, 2019, 2020, 2021, 2022, 4079, 4080, 4081, 8176, 8177, 20_000]


def built(folder, parts):
    """Values of each part in a file; their offsets."""
    first, sizes = 0, []
    for values in parts:
        sizes.append(np.array([len(value) for value in values], np.uint32))
        append_values(folder, first, values, sizes[-1])
        first += len(values)
    return finish_file(folder, sizes)


def random_parts(seed):
    rng = np.random.default_rng(seed)
    return [
        [rng.bytes(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(40)) for _ in range(n)]
        for n in rng.choice([0, 1, 2, 7, 300], 4)
    ]


@pytest.mark.parametrize(
    "parts",
    [
        [[b"one"]],
        [[]] * 2 + [[b"", b""]] + [[]],
        [[bytes([n % 256]) * size for n, size in enumerate(EDGES)], [b"x" * 3000]],
        # Leaves of two values: one branch page full, and one leaf more.
        *([[bytes([n % 256]) * 2000 for n in range(2 * m)]] for m in (204, 205)),
        *(random_parts(seed) for seed in range(4)),
    ],
    ids=lambda parts: f"{len(parts)} parts, {sum(map(len, parts))} values",
)
def test_the_library_reads_and_changes_it(tmp_path, parts, monkeypatch):
    if len(parts) == 4:
        monkeypatch.setattr(lmdb_packed, "_CHILDREN", 3)  # so that there are many levels
    offsets = built(tmp_path, parts)
    values = [value for part in parts for value in part]
    content = (tmp_path / "data.mdb").read_bytes()
    assert all(content[at : at + len(v)] == v for at, v in zip(offsets, values, strict=True))
    entries = list(scan_lmdb(str(tmp_path / "data.mdb")))
    assert [entry.offset for entry in entries] == offsets.tolist()
    expected = [(b"%010d" % n, value) for n, value in enumerate(values)]
    (tmp_path / "compact").mkdir()
    with lmdb.open(str(tmp_path), readonly=True, lock=False, max_dbs=1) as env:
        stat = env.stat()
        env.copy(str(tmp_path / "compact"), compact=True)
        with env.begin() as transaction:
            assert list(transaction.cursor()) == expected
            assert all(transaction.get(key) == value for key, value in expected[::50])
    with lmdb.open(str(tmp_path / "compact"), readonly=True, lock=False) as env:
        assert env.stat() == stat, "its pages are as many as those of the library's own file"
    with lmdb.open(str(tmp_path), map_size=1 << 30) as env:
        with env.begin(write=True) as transaction:
            for key, _ in expected[::3]:
                transaction.delete(key)
            for n in range(300):
                transaction.put(b"%010d-" % n, b"new" * n)
        with env.begin() as transaction:
            found = dict(transaction.cursor())
    kept = {key: value for n, (key, value) in enumerate(expected) if n % 3}
    assert found == kept | {b"%010d-" % n: b"new" * n for n in range(300)}


def test_a_part_written_again_gives_the_same_bytes(tmp_path):
    parts = random_parts(7)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    built(tmp_path / "a", parts)
    first, sizes = 0, []
    for values in parts:
        sizes.append(np.array([len(value) for value in values], np.uint32))
        wrong = [value + b"longer" for value in values]
        append_values(tmp_path / "b", first, wrong, sizes[-1] + 6)
        append_values(tmp_path / "b", first, values, sizes[-1])
        first += len(values)
    for _ in range(2):
        finish_file(tmp_path / "b", sizes)
    assert (tmp_path / "a/data.mdb").read_bytes() == (tmp_path / "b/data.mdb").read_bytes()
