"""MDS shards: the contract of storages, what MosaicML's own writer makes, damage, refusals."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.core.sample import BadRecord
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all
from tests.encoded_images import RGB, encode

N = 13
IMAGES = [encode(RGB.resize((20 + i, 20)), "JPEG") for i in range(N)]
EXPECTED = [(str(i), {"image": IMAGES[i], "text": f"number {i}", "label": i % 3}) for i in range(N)]
COLUMNS = {"x": "jpeg", "text": "str", "y": "int"}


def write(folder, *, per_shard=5, columns=COLUMNS, **changes):
    """Write the samples as MDS has them."""
    folder.mkdir()
    shards = []
    for start in range(0, N, per_shard):
        samples = []
        for _, fields in EXPECTED[start : start + per_shard]:
            text = fields["text"].encode()
            sizes = np.array([len(fields["image"]), len(text)], "<u4").tobytes()
            samples.append(sizes + fields["image"] + text + np.int64(fields["label"]).tobytes())
        first = 4 * (len(samples) + 2) + 6
        offsets = first + np.cumsum([0, *map(len, samples)])
        head = np.array([len(samples), *offsets], "<u4").tobytes() + b"config"
        content = head + b"".join(samples)
        name = f"shard.{start:05d}.mds"
        (folder / name).write_bytes(content)
        shards.append({
            "column_names": [*columns], "column_encodings": [*columns.values()],
            "column_sizes": [None, None, 8], "compression": None, "format": "mds", "hashes": [],
            "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
            "samples": len(samples), "size_limit": 1 << 26, "version": 2, "zip_data": None,
            **changes,
        })  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


@pytest.fixture
def storage(imported):
    return imported("plugins/penstock_mds.py").MdsStorage


def test_it_is_a_storage(storage, tmp_path):
    folder = str(write(tmp_path / "a"))
    copy = shutil.copytree(folder, tmp_path / "b")
    check_storage(lambda: storage(folder), EXPECTED, make_copy=lambda: storage(str(copy)))
    assert storage(folder).shards().tolist() == [0, 5, 10]
    assert storage(folder, fields={"photo": "x"}).read(np.array([3]))[0].fields == {
        "photo": IMAGES[3]
    }


def test_it_shuffles_and_resumes_in_the_middle_of_an_epoch(imported, tmp_path):
    imported("plugins/penstock_mds.py")
    folder = write(tmp_path / "a")
    config = compose([
        "dataset=mds", f"dataset.storage.path={folder}", "dataset.val_fraction=0",
        "augment.image_size=16", "loader=threads", "loader.num_workers=2", "loader.batch_size=4",
    ])  # fmt: skip
    loader = build_loader(config, "train")
    seen = iter(loader)
    first = next(seen)
    state, rest = loader.state_dict(), [batch["key"] for batch in seen]
    assert first["key"] != list("0123") and first["image"].shape[1:] == (16, 16, 3)
    resumed = build_loader(config, "train")
    resumed.load_state_dict(state)
    assert [batch["key"] for batch in resumed] == rest and len(rest) == 2


def test_flipped_bits_are_bad_records_or_refused_in_one_line(storage, tmp_path):
    folder = write(tmp_path / "a", per_shard=N)
    rng, path = np.random.default_rng(0), folder / f"shard.{0:05d}.mds"
    places = [*range(0, 80, 3), *rng.integers(80, path.stat().st_size, 20)]
    for _ in flipped(path, places, rng):
        records = unless_refused(lambda: read_all(storage(str(folder))))
        for record in records or ():
            assert not isinstance(record, BadRecord) or "\n" not in record.cause


def test_a_shard_that_is_cut_off_after_it_was_indexed_spoils_its_own_records_alone(
    storage, tmp_path
):
    folder = write(tmp_path / "a")
    made = storage(str(folder))
    len(made)
    path = folder / "shard.00005.mds"
    path.write_bytes(path.read_bytes()[:-10])
    bad = [record.key for record in read_all(made) if isinstance(record, BadRecord)]
    assert bad == ["9"]
    with pytest.raises(ValueError, match=r"shard.00005.mds: the file ends 10 bytes too early; cop"):
        len(storage(str(folder)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 1}, "lists shards of mds 1 with 1 sets of columns, expected mds 2"),
        ({"samples": 4}, "it is not the shard of 4 samples that index.json lists; copy it again"),
        ({"column_encodings": ["jpeg", "pkl", "int"]},
         r"the column text is pkl, which is not read; .*: type "
         r"dataset.storage.fields=\{image:x,label:y\}$"),
        ({"raw_data": {"basename": "../b", "bytes": 1}}, "leads out of its folder"),
        ({"raw_data": {"basename": "b.mds", "bytes": 1}}, "b.mds is missing; copy it there"),
        ({"raw_data": {"basename": "b", "bytes": 1}, "compression": "br:11",
          "zip_data": {"basename": "index.json"}}, "compressed by br, expected gz or zstd; unpack"),
        ({"column_names": 3}, "index.json is damaged .TypeError: .*; copy it again"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_in_one_line(storage, tmp_path, changes, said):
    folder = write(tmp_path / "a", **changes)
    with pytest.raises(ValueError, match=said) as error:
        len(storage(str(folder)))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"no index.json in there, expected a folder"):
        len(storage(str(tmp_path)))


@pytest.mark.ecosystem
@pytest.mark.parametrize("compression", [None, "zstd:3", "gz"])
def test_it_reads_what_the_library_writes_as_the_library_does(storage, tmp_path, compression):
    streaming = pytest.importorskip("streaming")
    columns = {
        "x": "jpeg", "class": "str", "p": "pil", "g": "png", "i": "int", "u": "uint8",
        "f": "float32", "si": "str_int", "sf": "str_float", "j": "json", "b": "bytes",
        "a": "ndarray", "a1": "ndarray:int16", "a2": "ndarray:float32:2,3",
    }  # fmt: skip
    rng = np.random.default_rng(0)
    with streaming.MDSWriter(
        out=str(tmp_path / "a"), columns=columns, compression=compression, size_limit=30_000
    ) as writer:
        for i in range(N):
            image = RGB.resize((20 + i, 20))
            writer.write({
                "x": image, "class": "abc"[i % 3], "p": image.convert("L") if i % 2 else image,
                "g": image, "i": i, "u": i, "f": i / 4, "si": 10**20 + i, "sf": i / 3,
                "j": {"i": [i]}, "b": bytes(i), "a": rng.integers(0, 9, (i + 1, 300)),
                "a1": np.arange(i + 1, dtype=np.int16), "a2": np.full((2, 3), i, np.float32),
            })  # fmt: skip
    made = storage(str(tmp_path / "a"))
    assert made.index.class_names == ("a", "b", "c") and len(made.shards()) > 1
    theirs = streaming.LocalDataset(str(tmp_path / "a")) if compression is None else None
    for i, record in enumerate(made.read(np.arange(N))):
        assert not isinstance(record, BadRecord), record
        ours = record.fields
        assert ours["label"] == i % 3 and ours["si"] == 10**20 + i and ours["j"] == {"i": [i]}
        if theirs is None:
            continue
        wanted = dict(theirs[i])
        wanted["p"] = np.array(wanted["p"].convert("RGB"))
        for name in {*columns} - {"x", "g", "class"}:
            assert np.array_equal(ours[name], wanted[name]), name
        assert ours["image"][:2] == b"\xff\xd8" and ours["g"][:4] == b"\x89PNG"
