"""Files that threads share: places, ends, and how many are open."""

import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.core.sample import RecordError
from penstock.datasets.files import access as file_access
from penstock.datasets.files.access import MissingFile, OpenFiles, RangeFile, RangeStream
from penstock.datasets.files.data_files import DataFiles

CONTENT = bytes(np.random.default_rng(0).bytes(5000))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    return str(tmp_path / "file")


def test_threads_read_ranges(path):
    file = pickle.loads(pickle.dumps(RangeFile(path, root=os.path.dirname(path))))
    places = [(i * 7 % 4900, i % 100) for i in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda place: file.read(*place), places)
        assert list(parts) == [CONTENT[a : a + n] for a, n in places]


def test_a_read_longer_than_the_kernel_gives_at_once(path, monkeypatch):
    monkeypatch.setattr(file_access, "_MOST_BYTES", 700)
    file = RangeFile(path, root=os.path.dirname(path))
    assert file.read(10, 4000) == CONTENT[10:4010]
    assert file.read_upto(4000, 4000) == CONTENT[4000:]


def test_reads_past_the_end_and_missing_files(path):
    file = RangeFile(path, root=os.path.dirname(path))
    with pytest.raises(RecordError, match="the file ends 90 bytes too early"):
        file.read(4990, 100)
    assert file.read_upto(6000, 10) == b""
    with pytest.raises(MissingFile, match="No such file"):
        RangeFile(path + "x", root=os.path.dirname(path)).read(0, 1)


def test_mapped_bytes_of_a_file_that_became_shorter(path):
    file = RangeFile(path, root=os.path.dirname(path))
    assert file.view(10, 4000).tobytes() == CONTENT[10:4010]
    os.truncate(path, 100)
    assert file.view(10, 90).tobytes() == CONTENT[10:100]
    with pytest.raises(RecordError, match="the file ends 1 bytes too early"):
        file.view(10, 91)


def test_a_stream_of_a_range_behaves_as_a_file(path):
    view = RangeStream(RangeFile(path, root=os.path.dirname(path)), len(CONTENT))
    with open(path, "rb") as file:
        for step in (lambda f: f.read(10), lambda f: f.seek(-20, io.SEEK_END),
                     lambda f: f.read(), lambda f: f.seek(100), lambda f: f.tell(),
                     lambda f: f.seek(5, io.SEEK_CUR), lambda f: f.read(50),
                     lambda f: f.seek(9000), lambda f: f.read(5)):  # fmt: skip
            assert step(view) == step(file)
    with pytest.raises(OSError, match="before the start"):
        view.seek(-1)


def test_the_number_of_open_files_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(file_access, "_OPEN_FILES", 3)
    for i in range(10):
        (tmp_path / str(i)).write_bytes(b"%d" % i)
    before = len(os.listdir("/proc/self/fd"))
    names = tuple(map(str, range(10)))
    files = OpenFiles(DataFiles(str(tmp_path), names, ((1, 0),) * 10))
    for i in [*range(10), *range(10)]:
        assert files[str(i)].read(0, 1) == b"%d" % i
    assert files["9"] is files["9"]
    assert len(os.listdir("/proc/self/fd")) <= before + 3
