"""The live view of a run: figures that the run wrote, until it ends or Ctrl-C."""

from __future__ import annotations

import csv
import fcntl
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from penstock import compose
from penstock.pipeline.commands import main
from penstock.pipeline.commands.top import newest_figures
from penstock.pipeline.training.job import train
from tests.programs import PENSTOCK


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, data_dir):
    outputs = tmp_path_factory.mktemp("outputs")
    overrides = [
        f"data_dir={data_dir}", f"outputs={outputs}", "run.name=short", "loader=threads",
        "loader.num_workers=2", "loader.batch_size=16", "trainer.max_steps=4",
        "trainer.log_every=2", "trainer.limit_val_batches=2", "trainer.progress=off",
    ]  # fmt: skip
    return Path(train(compose(overrides))["run_dir"])


def shown(capsys, *typed):
    assert main(["top", *typed]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line[:1] != " "}


def test_a_finished_run_shows_what_it_wrote(run_dir, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = shown(capsys, str(run_dir))
    with (run_dir / "timings.csv").open(newline="") as file:
        last = [row for row in csv.DictReader(file) if row["time/samples_per_s"]][-1]
    assert found["run"] == f"{run_dir}, done"
    assert found["step"] == "4, epoch 1"
    assert found["speed"] == f"{float(last['time/samples_per_s']):,.0f} samples/s"
    assert found["waiting"] == f"{float(last['time/data_wait']):.0%} of the time for data"
    use, ready = float(last["time/worker_use"]), float(last["time/ready"])
    assert 0 < use <= 1 and 0 <= ready <= 4
    assert (
        found["workers"] == f"at work {use:.0%} of the time, {ready:.0f} batches ready, 0 replaced"
    )
    assert found["bad"] == "0 bad samples"
    assert found["train"].startswith("loss ") and "accuracy" in found["val"]
    assert not {"cache", "fetched", "copies"} & {*found}, "what there is not is not shown"


def test_a_run_is_found_by_its_name_and_the_newest_without(run_dir, capsys):
    outputs = f"outputs={run_dir.parents[1]}"
    assert shown(capsys, "short", outputs)["step"] == shown(capsys, outputs)["step"] == "4, epoch 1"


def test_a_folder_that_is_no_run_is_a_line(run_dir, tmp_path, capsys):
    assert main(["top", str(tmp_path), f"outputs={run_dir.parents[1]}"]) == 2
    told = capsys.readouterr().err.strip()
    assert told == (f"error: top.path: no config.yaml in '{tmp_path}'; type path={run_dir}")
    assert main(["top", told.rpartition(" ")[2]]) == 0, "what it says works"
    assert main(["top", f"outputs={tmp_path}"]) == 2
    assert "make a run first: penstock train" in capsys.readouterr().err


def test_the_end_of_a_long_file_that_is_being_written_is_read(tmp_path):
    file = tmp_path / "timings.csv"
    rows = [f"{n},{n / 2},{'x' * (n == 7)}\n" for n in range(100_000)]
    file.write_text("step,a,b\n" + "".join(rows) + "100000,1.")
    assert newest_figures(file) == {"step": "99999", "a": "49999.5"}, "the row at the end is half"
    file.write_text("step,a,b\n1,2,3\n2,,4\n")
    assert newest_figures(file) == {"step": "2", "a": "2", "b": "4"}
    file.write_text("step,a\n")
    assert newest_figures(file) == newest_figures(tmp_path / "none.csv") == {}


class Terminal:
    """``penstock top`` on a terminal, and what it has shown."""

    def __init__(self, folder):
        self._fd, theirs = pty.openpty()
        command = [PENSTOCK, "top", str(folder)]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.set_blocking(self._fd, False)
        self.text = ""

    def wait_for(self, text, timeout_s=120.0):
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            try:
                read = os.read(self._fd, 1 << 16).decode()
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # nobody writes any more
                break
            else:
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read)
        assert text in self.text, self.text


@pytest.fixture
def training(tmp_path):
    """A folder in which a process, this one, trains."""
    (tmp_path / "config.yaml").write_text("{}\n")
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield tmp_path, lock


def test_the_view_follows_a_run_to_its_end(training):
    folder, lock = training
    terminal = Terminal(folder)
    terminal.wait_for("no figures yet")
    table = folder / "timings.csv"
    table.write_text("step,epoch,time/samples_per_s,time/data_wait\n10,0,1234.0,0.5\n")
    terminal.wait_for("1,234 samples/s")
    with table.open("a") as file:
        file.write("20,1,777.0,0.25\n")
    terminal.wait_for("20, epoch 2")
    assert terminal.process.poll() is None
    fcntl.lockf(lock, fcntl.LOCK_UN)
    assert terminal.process.wait(60) == 0
    terminal.wait_for("stopped")


def test_ctrl_c_ends_the_view(training):
    terminal = Terminal(training[0])
    terminal.wait_for("no figures yet")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0
    assert "Traceback" not in terminal.text
