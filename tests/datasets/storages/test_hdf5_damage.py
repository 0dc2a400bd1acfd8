"""HDF5 files with damaged chunks and heaps, unfinished files, and a missing library."""

import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.storages.hdf5 import Hdf5Storage
from tests.contracts.damage import unless_refused
from tests.contracts.storage import read_all
from tests.datasets.storages.hdf5_files import FILES, IMAGES, PIECES, message, write, write_lists


def test_damage_in_a_chunk_is_a_bad_record(tmp_path):
    for pieces in ("gzip", "checked", "all"):
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
                assert isinstance(record, BadRecord)
                assert f"rows {height} to {2 * height - 1}: damaged" in record.cause
            else:
                assert np.array_equal(record.fields["image"], IMAGES[i])
        assert storage.take(np.arange(11), ("image",)) is None
        assert np.array_equal(storage.take(np.array([0, 10]), ("image",))["image"], IMAGES[[0, 10]])


@pytest.mark.parametrize("pieces", [{}, {"chunks": (4,)}, {"chunks": (4,), "compression": "gzip"}])
def test_zeros_in_the_heap_do_not_hang(tmp_path, pieces):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        write_lists(file, "image", FILES, **pieces)
        file["keys"] = [f"k{i}" for i in range(11)]
        file["label"] = [f"class {i % 3}" for i in range(11)]
    whole = path.read_bytes()
    storage = Hdf5Storage(str(path))
    assert len(storage) == 11
    places = [at for at in range(len(whole)) if whole.startswith(b"GCOL", at)]
    assert len(places) > 2
    for start in places:
        path.write_bytes(whole[: start + 16] + bytes(200) + whole[start + 216 :])
        pickle.loads(pickle.dumps(storage)).read(np.arange(11))
        unless_refused(lambda: read_all(Hdf5Storage(str(path))))


def test_a_file_that_is_being_written(tmp_path):
    path = tmp_path / "a.h5"
    code = (
        "import sys, h5py, numpy\n"
        "with h5py.File(sys.argv[1], 'w') as file:\n"
        "    file['images'] = numpy.zeros((11, 6, 5, 3), 'u1')\n"
        "    file.flush(); print(flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        assert "being written" in message(path)
        writer.communicate()
    assert len(Hdf5Storage(str(path))) == 11


def test_without_the_library_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "h5py is missing (the extra hdf5); run: pip install 'h5py>=3.16'" in message(path)
