"""``bench storages``: forms packed, measured and compared; nothing is left behind."""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from penstock.core import files
from penstock.pipeline.commands import main
from penstock.pipeline.commands.bench.memory import own_bytes
from penstock.pipeline.commands.bench.storage_process import (
    MeasureError,
    measure,
    open_some,
)
from penstock.pipeline.commands.bench.storages import pack_form, sampled_rows
from penstock.pipeline.packing.report import folder_bytes
from tests.pipeline.commands.numbers_storage import Numbers, Refusing
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[3]
QUICK = ["bench.seconds=0.02", "bench.rounds=1", "bench.records=100"]


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of this process in the temporary directory, which is empty."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    files.own_folder.cache_clear()
    yield files.own_folder()
    files.own_folder.cache_clear()


def left_in(scratch: Path) -> list[str]:
    return [path.name for path in scratch.iterdir()]


def compare(data_dir: Path, tmp_path: Path, *overrides: str, word: str = "storages") -> int:
    given = [*QUICK, f"data_dir={data_dir}", f"outputs={tmp_path}/outputs", *overrides]
    return main(["bench", word, *given])


def test_forms_are_packed_measured_and_taken_away(data_dir, tmp_path, scratch, capsys):
    assert compare(data_dir, tmp_path, "bench.storages=[parquet,memmap]") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = {line.split()[0]: line for line in out.splitlines() if re.search(r"\d/s", line)}
    assert set(rows) == {"image_folder*", "parquet"}
    for row in rows.values():
        assert re.search(r"[\d,]+/s +[\d.]+ +[\d,]+/s +[\d.]+ MB +[\d.]+ s +[\d.]+ s", row)
    # Encoded files are no rows of an array; the reason is the packer's.
    assert re.search(
        r"not possible +memmap: the field 'image' is .*pack\.raw=1", " ".join(out.split())
    )
    assert "For shuffled reading of records of" in out and "Decoding a record takes" in out
    assert left_in(scratch) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch"]


def test_the_word_stands_for_all_forms_and_a_slip_is_said(data_dir, tmp_path, capsys, monkeypatch):
    from penstock.pipeline.commands import bench

    seen = []
    monkeypatch.setattr(bench, "run", lambda points: seen.append(points.points[0].config) or 0)
    assert compare(data_dir, tmp_path) == 0
    assert compare(data_dir, tmp_path, "storages=lmdb") == 0
    assert main(["bench", f"data_dir={data_dir}", "storages", "bench.storages=[zip]"]) == 0
    assert [config["bench"]["storages"] for config in seen] == [True, "lmdb", ["zip"]]
    assert compare(data_dir, tmp_path, word="storage") == 2
    assert "did you mean storages?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["bench.storages=[lmbd]"],
            "no form 'lmbd' can be written, .* type bench.storages=\\[lmdb\\]",
        ),
        (["bench.storages=[zip,zip]"], "zip is given twice"),
        (["bench.storages=lmdb", "seed=1,2"], "seed: several values given"),
        (["bench.records=0"], "bench.records"),
        (["bench.storages=lmdb", "bench.keep={keep}"], "is there already; name a new folder"),
    ],
    ids=["unknown", "twice", "sweep", "records", "keep"],
)
def test_mistakes_are_said_before_anything_is_packed(
    overrides, said, data_dir, tmp_path, scratch, capsys
):
    keep = tmp_path / "kept"
    keep.mkdir()
    (keep / "mine.txt").write_text("mine")
    assert compare(data_dir, tmp_path, *[text.format(keep=keep) for text in overrides]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert left_in(scratch) == []
    assert (keep / "mine.txt").read_text() == "mine"


def test_nothing_is_kept_in_the_source_itself(data_dir, tmp_path, capsys):
    inside = data_dir / "demo" / "images" / "new"
    assert compare(data_dir, tmp_path, f"bench.keep={inside}", "bench.storages=zip",
                   f"dataset.storage.path={inside.parent}") == 2  # fmt: skip
    assert "bench.keep: " in (said := capsys.readouterr().err) and "lie in each other" in said
    assert not inside.exists()


def test_what_is_kept_can_be_trained_on(data_dir, tmp_path, scratch, capsys):
    from penstock.pipeline.build import open_storage
    from penstock.pipeline.config.compose import configure

    keep = tmp_path / "kept"
    assert compare(data_dir, tmp_path, "bench.storages=parquet", f"bench.keep={keep}") == 0
    assert "dataset.storage.path=" in capsys.readouterr().out
    given = [f"dataset.storage.path={keep}/parquet", "dataset=parquet", "dataset.val_fraction=0"]
    kept = open_storage(configure(given), "train")
    source = open_storage(configure([f"data_dir={data_dir}"]), "train")
    rows = sampled_rows(source, 100)
    pairs = zip(kept.read(np.arange(100)), source.read(rows), strict=True)
    assert all(a.key == b.key and a.fields["image"] == b.fields["image"] for a, b in pairs)
    assert left_in(scratch) == []


def test_a_full_disk_is_a_line_and_nothing_is_left(
    data_dir, tmp_path, scratch, capsys, monkeypatch
):
    from penstock.datasets.storages.zip import ZipWriter

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ZipWriter, "finish", full)
    keep = tmp_path / "kept"
    assert compare(data_dir, tmp_path, "bench.storages=zip", f"bench.keep={keep}") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "No space left" in err and "bench.records" in err
    assert left_in(scratch) == [] and not keep.exists()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_leaves_nothing_behind(number, data_dir, tmp_path):
    (scratch := tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        [PENSTOCK, "bench", "storages", f"data_dir={data_dir}",
         "bench.seconds=600", "bench.rounds=1", "bench.storages=[lmdb]", "bench.records=50"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        # The source's index is written by the process that measures it.
        while not list(scratch.glob("*/*/.caches/0")) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate(timeout=250)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert list(scratch.iterdir()) == []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # the one that tracks multiprocessing's resources is last
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of its session is left")


def test_a_process_says_what_it_measured(tmp_path):
    some = partial(open_some, Numbers, np.arange(3, 7))
    assert [record.key for record in some().read(np.arange(4))] == ["003", "004", "005", "006"]
    first = measure(pickle.dumps(some), [], str(tmp_path))
    assert first.open_s > 0 and first.bad == 0
    found = measure(pickle.dumps(some), [], str(tmp_path), seconds=0.02)
    assert min(found.random, found.sequential, found.random_us, found.sequential_us) > 0


def test_a_process_that_dies_or_fails_is_a_line(tmp_path):
    dies = pickle.dumps(partial(Numbers, dies=True))
    with pytest.raises(MeasureError, match=r"its process ended"):
        measure(dies, [], str(tmp_path))
    with pytest.raises(MeasureError, match="RuntimeError: no licence"):
        measure(pickle.dumps(Refusing), [], str(tmp_path))


def test_own_memory_is_what_nothing_could_take(tmp_path):
    text = "1-2 rollup\nRss: 900 kB\nPrivate_Clean: 70 kB\nPrivate_Dirty: 30 kB\nSwapPss: 4 kB\n"
    (tmp_path / "smaps_rollup").write_text(text)
    assert own_bytes(tmp_path) == 34 * 1024
    assert own_bytes(tmp_path / "none") is None


def test_sampled_records_are_evenly_spread_runs():
    rows = sampled_rows(Numbers(1000), 100)
    assert len(rows) == 100 and (np.diff(rows) > 0).all()
    assert len(np.flatnonzero(np.diff(rows) > 1)) == 15  # 16 runs
    assert rows[0] == 0 and rows[-1] > 900
    assert sampled_rows(Numbers(50), 100).tolist() == list(range(50))
    assert sampled_rows(Numbers(50), 3).tolist() == [0, 16, 33]
    assert len(sampled_rows(Numbers(20_000), None)) == 10_000


def test_large_records_are_fewer(monkeypatch):
    from penstock.pipeline.commands.bench import storages

    monkeypatch.setattr(storages, "SAMPLE_BYTES", 20_000)
    assert len(sampled_rows(Numbers(1000), None)) == 20


def test_sizes_are_those_of_the_files(data_dir, tmp_path):
    from penstock.pipeline.build import open_storage
    from penstock.pipeline.config.components import register_components
    from penstock.pipeline.config.compose import configure

    register_components([])
    source = open_storage(configure([f"data_dir={data_dir}"]), "val")
    form = pack_form("zip", source, tmp_path / "zip")
    assert form.why == ""
    assert form.size_bytes == folder_bytes(tmp_path / "zip")
    assert form.size_bytes > int(source.index.column("size_bytes").sum())


def test_a_missing_package_is_a_reason(data_dir, tmp_path, monkeypatch):
    from penstock.pipeline.build import open_storage
    from penstock.pipeline.config.components import register_components
    from penstock.pipeline.config.compose import configure

    register_components([])
    monkeypatch.setitem(sys.modules, "h5py", None)
    source = open_storage(configure([f"data_dir={data_dir}"]), "val")
    form = pack_form("hdf5", source, tmp_path / "hdf5")
    assert "pip install" in form.why and not form.opens
    assert list(tmp_path.iterdir()) == []


def test_records_that_a_split_leaves_over_are_packed(data_dir, tmp_path):
    from penstock.pipeline.build import open_storage, storage_opener
    from penstock.pipeline.config.compose import configure

    path = data_dir / "demo" / "images" / "val"
    given = [f"dataset.storage.path={path}", "dataset.val_fraction=0.5"]
    config = configure(given)
    source = open_storage(config, "train")
    rows = np.arange(len(source) - 5, len(source))
    some = open_some(storage_opener(config, "train"), rows)
    pairs = zip(some.read(np.arange(5)), source.read(rows), strict=True)
    assert all(a.key == b.key and a.fields == b.fields for a, b in pairs)


def test_a_cache_holds_the_same_share_of_a_sample(data_dir, tmp_path):
    from penstock.pipeline.build import open_storage
    from penstock.pipeline.config.components import register_components
    from penstock.pipeline.config.compose import configure

    register_components([])
    source = open_storage(configure([f"data_dir={data_dir}"]), "val")
    whole = pickle.loads(pack_form("parquet", source, tmp_path / "whole").opens)()
    tenth = pickle.loads(pack_form("parquet", source, tmp_path / "tenth", share=0.1).opens)()
    assert tenth.cache_bytes == int(whole.cache_bytes * 0.1)
