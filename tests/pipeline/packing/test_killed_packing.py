"""Whatever is killed, and whenever: the repeated command resumes, and the result is the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from penstock.pipeline.config.components import register_components
from penstock.pipeline.packing.run import pack
from tests.contracts.records import records_of
from tests.contracts.storage import contents
from tests.pipeline.packing.killing import check_killed, pack_killed
from tests.pipeline.packing.packings import KINDS, Deadly, packing
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def storages():
    register_components()


@pytest.mark.slow
def test_killed_at_every_step_and_gone_on_with(tmp_path):
    steps = check_killed(
        lambda target: packing(target, {"train": records_of(KINDS, 13)}),
        tmp_path, contents, kills=None,
    )  # fmt: skip
    assert steps > 40


def test_overwriting_that_was_killed_goes_on_and_nothing_is_left(tmp_path):
    def make(target):
        return packing(target, {"train": records_of(KINDS, 7)}, overwrite=True)

    for name in ("whole", "first"):
        (tmp_path / name).mkdir()
    assert pack(packing(tmp_path / "first/packed")) == 0
    shutil.copytree(tmp_path / "first/packed", tmp_path / "whole/packed")
    whole, steps = tmp_path / "whole/packed", tmp_path / "steps"
    assert pack_killed(lambda: make(whole), None, steps=steps) == 0
    count = int(steps.read_text())
    for step in range(count - 30, count, 2):  # while it takes its place
        place = tmp_path / str(step)
        shutil.copytree(tmp_path / "first", place)
        assert pack_killed(lambda place=place: make(place / "packed"), step) is None
        assert pack_killed(lambda place=place: make(place / "packed"), None) == 0
        assert contents(place) == contents(tmp_path / "whole"), step


def test_what_was_replaced_and_not_yet_removed_is_in_nobodys_way(tmp_path):
    def make():
        return packing(tmp_path / "packed", {"train": records_of(KINDS, 7)}, overwrite=True)

    assert pack(make()) == 0
    before = tmp_path / ".packed.packing/replaced"
    before.mkdir(parents=True)
    (before / "a.file").write_bytes(b"x")
    assert pack(make()) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_a_part_cut_short_in_the_staging_folder_is_written_again(tmp_path):
    assert pack(packing(tmp_path / "whole")) == 0
    target, staging = tmp_path / "cut", tmp_path / ".cut.packing"
    part = staging / "result/train/part-00001-of-00005.lmdb"
    for step in range(30, 400):  # until it is there
        assert pack_killed(lambda: packing(target), step) is None
        if (staging / "journal/train/000001").exists():
            break
        shutil.rmtree(staging)
    os.truncate(part, part.stat().st_size // 2)
    assert pack_killed(lambda: packing(target), None) == 0
    assert contents(target) == contents(tmp_path / "whole")


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    assert pack(packing(tmp_path / "whole")) == 0
    (tmp_path / "counts").mkdir()
    listed = records_of(KINDS)
    source = Deadly(listed.records, listed.index.class_names, times=2, counts=tmp_path / "counts")
    sources = {"train": source, "val": records_of(KINDS, 7)}
    assert pack(packing(tmp_path / "packed", sources, num_workers=2)) == 0
    assert len(list((tmp_path / "counts").iterdir())) == 2
    assert contents(tmp_path / "packed") == contents(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 3])
def test_a_record_that_kills_every_worker_is_named(tmp_path, number):
    (tmp_path / "counts").mkdir()
    listed = records_of(KINDS)
    source = Deadly(
        listed.records, listed.index.class_names, times=99, counts=tmp_path / "counts",
        number=number,
    )  # fmt: skip
    cause = (
        rf"records 10 to 14 of listed records ended its worker process 3 times "
        rf"\(signal {number:d} "
    )
    before = _children()
    with pytest.raises(ValueError, match=cause):
        pack(packing(tmp_path / "packed", {"train": source}, num_workers=2))
    wait_until(lambda: not _children() - before, "a process is left")
    assert not (tmp_path / "packed").exists()


def _children():
    """What this process has started and runs, but for what removes leaked names at its end."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found


HARD_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
HELD = """
import sys
from dataclasses import replace
from pathlib import Path
from penstock.pipeline.config.components import register_components
from penstock.pipeline.packing.run import pack
from tests.contracts.records import records_of
from tests.pipeline.packing.packings import KINDS, Held, packing

if __name__ == "__main__":
    register_components()
    listed = records_of(KINDS, 90)
    source = Held(listed.records, listed.index.class_names, Path(sys.argv[1] + ".held"))
    sys.exit(pack(packing(Path(sys.argv[1]), {"train": source}, num_workers=2)))
"""


def test_a_program_without_a_guard_packs_what_it_defines_itself(tmp_path):
    own = "class Own(Held): pass\n\n"
    unguarded = HELD.replace('__name__ == "__main__"', "True").replace("Held(", "Own(")
    (tmp_path / "unguarded.py").write_text(unguarded.replace("if True", own + "if True"))
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "unguarded.py"), str(tmp_path / "packed")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout.count("train: 90 records") == 1, "the workers did not run it again"
    assert (tmp_path / "packed").exists()


def start_and_hold(tmp_path):
    """A program amid its packing, which goes on when the second path is removed."""
    held = tmp_path / "packed.held"
    held.touch()
    (tmp_path / "held.py").write_text(HELD)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "held.py"), str(tmp_path / "packed")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    journal = tmp_path / ".packed.packing/journal/train"
    deadline = time.monotonic() + 120
    while not list(journal.glob("0*")):
        assert time.monotonic() < deadline and process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    return process, held


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in HARD_SIGNALS)],
)
def test_a_signal_stops_it_at_once_and_it_goes_on(tmp_path, number):
    process, held = start_and_hold(tmp_path)
    others = psutil.Process(process.pid).children(recursive=True)
    # Ctrl-C reaches every process of the terminal.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    said = process.communicate(timeout=250)[0]
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "repeat the command" in said and "Traceback" not in said
    _, left = psutil.wait_procs(others, timeout=120)
    assert not left
    assert not (tmp_path / "packed").exists()
    done = len(list((tmp_path / ".packed.packing/journal/train").glob("0*")))
    assert 0 < done < 18
    held.unlink()
    again = subprocess.run(
        [sys.executable, str(tmp_path / "held.py"), str(tmp_path / "packed")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "train: resuming, " in again.stdout
    listed = records_of(KINDS, 90)
    assert pack(packing(tmp_path / "whole", {"train": listed})) == 0
    assert contents(tmp_path / "packed") == contents(tmp_path / "whole")


def test_two_packers_at_one_target(tmp_path):
    process, held = start_and_hold(tmp_path)
    with pytest.raises(ValueError, match=r"another process is packing .*packed; wait for it"):
        pack(packing(tmp_path / "packed"))
    held.unlink()
    assert process.wait(120) == 0
