"""The commands that must always work, as a user types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.console import penstock
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[2]
slow = partial(pytest.param, marks=pytest.mark.slow)
QUICK = ["trainer.max_steps=4", "trainer.limit_val_batches=2", "loader.batch_size=16"]


def _run(arguments: list[str], *, cwd: Path, data_dir: Path, timeout_s: float = 240):
    """Run one command in a folder of its own, with the demo set that is there already."""
    given = [*arguments, f"data_dir={data_dir}"]
    return subprocess.run(
        given, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def _train(*overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *QUICK, *overrides]


def test_training_runs_and_tells_what_happened(tmp_path, data_dir):
    done = _run(_train("dataset=lmdb", "loader.num_workers=2"), cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    runs = list(tmp_path.glob("outputs/*/*/config.yaml"))
    assert len(runs) == 1
    assert (runs[0].parent / "metrics.csv").read_text().count("\n") >= 2
    assert "accuracy" in done.stdout
    assert str(runs[0].parent.relative_to(tmp_path)) in done.stdout


@pytest.mark.slow
def test_a_sweep_runs_a_job_for_each_combination(tmp_path, data_dir):
    sweep = ["-m", "sampler=random,weighted", "loader.batch_size=16,32", "loader=inline"]
    command = [sys.executable, str(ROOT / "train.py"), *QUICK[:2], *sweep]
    done = _run(command, cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) == 4
    jobs = re.findall(
        r"^job \d: (?=.*sampler=(\w+))(?=.*loader.batch_size=(\d+))", done.stdout, re.M
    )
    assert jobs == [(name, size) for name in ("random", "weighted") for size in ("16", "32")]


@pytest.mark.slow
def test_a_sweep_runs_under_joblib(tmp_path, data_dir):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = ["-m", "hydra/launcher=joblib", "seed=1,2", "loader=inline", "hydra.launcher.n_jobs=2"]
    done = _run(_train(*sweep), cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) == 2


@pytest.mark.slow
def test_a_registered_component_from_a_file(tmp_path, data_dir):
    file = ROOT / "examples" / "my_components.py"
    sampler = file.read_text().split('@register("sampler", "')[1].split('"')[0]
    arguments = [f"imports=[{file}]", f"sampler={sampler}", "loader.num_workers=1"]
    done = _run(_train(*arguments), cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_ranks_under_torchrun(tmp_path, data_dir):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    torchrun += ["--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d"]
    torchrun += ["--rdzv-endpoint=127.0.0.1:0"]
    command = [*torchrun, str(ROOT / "train.py"), *QUICK, "dataset=lmdb", "loader.num_workers=1"]
    done = _run(command, cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks x 8") == 1
    assert len(list(tmp_path.glob("outputs/*/*"))) == 1


@pytest.mark.parametrize(
    ("typo", "hint"),
    [
        ("sampler=wheighted", "weighted"),
        # Of each kind of mistake the line itself is what tests/config looks at.
        slow("loader.num_worker=8", "loader.num_workers"),
        slow("datset=lmdb", "dataset"),
        slow("loader.batch_size=many", "loader.batch_size"),
    ],
)
def test_a_typo_is_told_in_one_line_and_makes_nothing(tmp_path, typo, hint):
    command = [sys.executable, str(ROOT / "train.py"), typo]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_environment())
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_reader_that_leaves_gets_no_traceback(tmp_path):
    train = f"{sys.executable} {ROOT / 'train.py'}"
    for command in (f"{train} --help", f"{train} --cfg job", f"{PENSTOCK} --help"):
        done = subprocess.run(
            ["bash", "-c", f"{command} | head -1"],
            cwd=tmp_path, capture_output=True, text=True, env=_environment(),
        )  # fmt: skip
        assert done.stdout.count("\n") == 1
        assert done.stderr == ""


def _left(arguments: list[str], *, cwd: Path, lines: int) -> int:
    """Read some lines of a command and close the pipe; its status, with nothing said of it."""
    with (cwd / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            arguments, cwd=cwd, stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        status = process.wait(timeout=120)
        errors.seek(0)
        assert errors.read() == ""
    return status


def _unread(*words: str) -> int:
    """Run a command in this process with its output in a closed pipe; its status."""
    unread, output = os.pipe()
    os.close(unread)
    with pytest.MonkeyPatch.context() as patch, open(output, "w") as stream:
        patch.setattr(sys, "stdout", stream)
        return penstock(*words)


def test_training_ends_when_nobody_reads_and_goes_on_from_its_checkpoint(
    tmp_path, data_dir, monkeypatch, capfd
):
    small = ["trainer.limit_train_batches=4", "trainer.limit_val_batches=1", "augment=none",
             "loader=inline", "trainer.num_threads=1", f"data_dir={data_dir}"]  # fmt: skip
    run = [sys.executable, str(ROOT / "train.py"), *small, "trainer.max_epochs=100000"]
    assert _left(run, cwd=tmp_path, lines=9) == 128 + signal.SIGPIPE
    [last] = tmp_path.glob("outputs/*/*/checkpoints/last.pt")
    folder = last.parents[1]
    monkeypatch.chdir(tmp_path)
    assert penstock("train", f"trainer.resume={folder}", "trainer.max_epochs=1") == 0
    assert "damaged" not in "".join(capfd.readouterr())
    evaluate = [PENSTOCK, "evaluate", f"checkpoint={folder}", "overwrite=true"]
    assert _left(evaluate, cwd=tmp_path, lines=0) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    "arguments",
    [
        ["preview", "preview.samples=2"],
        ["doctor"],
        ["bench", "bench.seconds=0.2", "loader=inline"],
        ["runs"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_end_when_nobody_reads(tmp_path, data_dir, arguments, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    arguments += [] if arguments == ["runs"] else [f"data_dir={data_dir}"]
    assert _unread(*arguments) == 128 + signal.SIGPIPE
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "outputs").exists()


def test_a_sweep_ends_with_the_job_that_nobody_reads(tmp_path, data_dir):
    sweep = ["train", "-m", "seed=1,2", "trainer.max_steps=1", f"data_dir={data_dir}"]
    assert _left([PENSTOCK, *sweep], cwd=tmp_path, lines=0) == 128 + signal.SIGPIPE
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) <= 1


def test_a_missing_path_is_an_error_and_generates_nothing(tmp_path):
    command = _train("dataset.storage.path=/no/such/photos")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_environment())
    assert done.returncode != 0
    assert "/no/such/photos" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_disk_without_room_ends_a_run_in_a_line(tmp_path, data_dir):
    run = _train("loader=inline", f"data_dir={data_dir}")
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "bash", *run]  # 400 KB a file
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, env=_environment())
    assert done.returncode == 1
    [line] = done.stderr.splitlines()[-1:]
    assert line.startswith("error: outputs/") and "last.pt cannot be written: File too" in line
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("outputs/*/*/checkpoints/*"))


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on_where_it_stopped(tmp_path, data_dir):
    whole = [sys.executable, str(ROOT / "train.py"), "trainer.max_steps=300"]
    whole += ["loader.batch_size=16"]
    whole += ["trainer.limit_val_batches=1", "trainer.resume=auto"]
    process = subprocess.Popen(
        [*whole, f"data_dir={data_dir}"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=_environment(), start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _steps(tmp_path):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    before = _steps(tmp_path)
    done = _run(whole, cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    after = _steps(tmp_path)
    assert len(list(tmp_path.glob("outputs/*/*"))) == 1
    assert after[: len(before)] == before
    assert after == sorted(after)
    assert after[-1] == 300


def _steps(folder: Path) -> list[int]:
    """The steps that the run's metrics name, in order."""
    files = list(folder.glob("outputs/*/*/metrics.csv"))
    if not files:
        return []
    rows = files[0].read_text().splitlines()
    column = rows[0].split(",").index("step") if rows else 0
    return [int(row.split(",")[column]) for row in rows[1:]]


COMMAND = [PENSTOCK]
BENCH = ["bench.seconds=0.2", "bench.records=16", "bench.try_seconds=0", "loader.batch_size=16"]


@pytest.mark.slow
def test_bench_preview_and_pack(tmp_path, data_dir):
    done = _run([*COMMAND, "bench", *BENCH], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    assert "is the limit" in done.stdout
    done = _run([*COMMAND, "preview", "preview.samples=2"], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "preview.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "preview.html").read_text()
    assert page.count("<figure><img") == 2 * 4
    done = _run([*COMMAND, "pack", "pack.path=packed"], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    packed = ["dataset=lmdb", "dataset.storage.path=packed"]
    done = _run(_train(*packed, "loader=inline"), cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_bench_of_tiled_images_and_doctor(tmp_path, data_dir):
    tiled = ["pack", "pack.path=tiled", "pack.tiled=true", "pack.quality=90"]
    done = _run([*COMMAND, *tiled], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    bench = ["bench", "dataset=lmdb", "dataset.storage.path=tiled", *BENCH, "loader=inline"]
    done = _run([*COMMAND, *bench], cwd=tmp_path, data_dir=data_dir)
    assert "of 16 of 16 images only what the first crop needs" in done.stdout
    done = _run([*COMMAND, *tiled], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 2
    assert done.stderr.startswith("error: pack.path: tiled exists")
    equal = ["doctor", "equal=true", "doctor.batches=2", "loader.batch_size=16"]
    done = _run([*COMMAND, *equal], cwd=tmp_path, data_dir=data_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "differ" not in done.stdout
