"""HDF5 files that are damaged, cut short, or still being written, and a library that fails."""

import h5py
import numpy as np
import pytest

from datasets.formats import hdf5_process
from datasets.formats.hdf5_filters import fletcher32
from datasets.sample import BadRecord
from datasets.storages.hdf5 import Hdf5Storage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import read_all
from tests.datasets.storages.hdf5_files import (
    FILES,
    IMAGES,
    PIECES,
    message,
    write,
    write_groups,
    write_lists,
)

rng = np.random.default_rng(0)


def test_damage_in_a_chunk_is_a_bad_record(tmp_path):
    for pieces, said in (
        ("gzip", "decompressed"), ("checked", "checksum"), ("all", "checksum")
    ):  # fmt: skip
        path = write(tmp_path / f"{pieces}.h5", PIECES[pieces])
        with h5py.File(path) as file:
            place = file["images"].id.get_chunk_info(1)
        content = bytearray((tmp_path / f"{pieces}.h5").read_bytes())
        content[place.byte_offset + 8 : place.byte_offset + 12] = b"\xff\0\xff\0"
        (tmp_path / f"{pieces}.h5").write_bytes(content)
        storage = Hdf5Storage(path)
        height = PIECES[pieces]["chunks"][0]
        for i, record in enumerate(storage.read(np.arange(11))):
            if height <= i < 2 * height:
                assert isinstance(record, BadRecord) and said in record.cause
                assert f"rows {height} to {2 * height - 1}" in record.cause
            else:
                assert np.array_equal(record.fields["image"], IMAGES[i])
        assert storage.take(np.arange(11), ("image",)) is None
        assert np.array_equal(storage.take(np.array([0, 10]), ("image",))["image"], IMAGES[[0, 10]])


def test_damage_in_the_heap_is_a_bad_record(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_lists(file, "image", FILES)
    content = (tmp_path / "a.h5").read_bytes()
    at = content.index(b"GCOL")
    for place in (at, at + 4, at + 16):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        (tmp_path / "a.h5").write_bytes(damaged)
        storage = Hdf5Storage(str(tmp_path / "a.h5"))
        records = storage.read(np.arange(11))
        assert any(isinstance(record, BadRecord) for record in records)
        for i, record in enumerate(records):
            assert isinstance(record, BadRecord) or record.fields["image"] == FILES[i]


def test_a_file_cut_short(tmp_path):
    path = write(tmp_path / "a.h5", PIECES["gzip"])
    whole = (tmp_path / "a.h5").read_bytes()
    for length in (0, 7, 96, 500, len(whole) // 2, len(whole) - 1):
        (tmp_path / "a.h5").write_bytes(whole[:length])
        said = message(path)
        assert "damaged or no HDF5 file" in said or "written" in said, said
    (tmp_path / "a.h5").write_bytes(whole)
    storage = Hdf5Storage(path)
    len(storage)
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 3])
    assert any(isinstance(record, BadRecord) for record in storage.read(np.arange(11)))


@pytest.mark.parametrize("kind", ["gzip", "contiguous", "lists", "groups"])
def test_flipped_bytes_end_in_a_line_or_a_bad_record(tmp_path, kind):
    path = tmp_path / "a.h5"
    if kind == "groups":
        write_groups(path)
    elif kind == "lists":
        with h5py.File(path, "w") as file:
            write_lists(file, "image", [f[:40] for f in FILES])
    else:
        write(path, PIECES[kind])
    random = np.random.default_rng(3)
    for _ in flipped(path, random.integers(0, path.stat().st_size, 4), random):
        records = unless_refused(lambda: read_all(Hdf5Storage(str(path))))
        assert records is None or len(records) <= 11 * 1000


def test_a_library_that_is_lost_is_ended(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    lost = "import sys, time; sys.stdin.buffer.readline(); import signal; signal.alarm(1); "
    monkeypatch.setattr(hdf5_process, "_CODE", lost + "time.sleep(30)")
    monkeypatch.setattr(hdf5_process, "DEADLINE_S", 1)
    assert "the library was lost in it for 1 s" in message(path)
    monkeypatch.setattr(hdf5_process, "_CODE", "import os; os.kill(os.getpid(), 11)")
    assert "did not survive it (SIGSEGV)" in message(path)


def test_the_alarm_is_set_while_the_library_works(tmp_path):
    import signal

    from datasets.formats import hdf5_scan

    scan = hdf5_scan._Scan(open(tmp_path / "answers", "wb"), 100)
    try:
        scan.answer({"look": True, "path": write(tmp_path / "a.h5"), "group": "", "fields": None})
        assert 90 <= signal.alarm(0) <= 100
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("mode", [{}, {"libver": "latest"}])
def test_a_file_that_is_being_written(tmp_path, mode):
    with h5py.File(tmp_path / "a.h5", "w", **mode) as file:
        file["images"] = IMAGES
        if mode:
            file.swmr_mode = True
        file.flush()
        assert "being written" in message(tmp_path / "a.h5")
    assert len(Hdf5Storage(str(tmp_path / "a.h5"))) == 11


def test_the_checksum_is_that_of_the_library(tmp_path):
    for count in (1, 2, 359, 720, 721, 1 << 18, (1 << 18) + 3):
        for data in (rng.integers(0, 256, count, np.uint8), np.full(count, 255, np.uint8)):
            with h5py.File(tmp_path / "a.h5", "w") as file:
                chunk = file.create_dataset("a", data=data, chunks=(count,), fletcher32=True)
                _, stored = chunk.id.read_direct_chunk((0,))
            assert fletcher32(stored[:-4]) == int.from_bytes(stored[-4:], "little")


def test_without_the_library_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    monkeypatch.setattr(hdf5_process.importlib.util, "find_spec", lambda name: None)
    assert "the package h5py is missing; run: pip install h5py" in message(path)
