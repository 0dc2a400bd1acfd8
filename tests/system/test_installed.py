"""Penstock from a wheel, in a folder that knows nothing of a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["trainer.max_steps=3", "trainer.limit_val_batches=2", "loader.batch_size=16"]
TYPED = """from penstock import build_loader, compose

loader = build_loader(compose(["dataset=lmdb"]), split="train")
reveal_type(loader)
build_loader(compose([]), split=1)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel brings, beside a package of Hugging Face's name."""
    made = tmp_path_factory.mktemp("wheel")
    source = made / "source"
    # What was built before, or by another, must not get into the wheel.
    others = (".*", "build", "data", "outputs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*others))
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", made, source], check=True)
    site = made / "site"
    [wheel] = made.glob("penstock-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    (site / "datasets.py").write_text("load_dataset = 'theirs'\n")
    return site


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of the examples, copied out of the checkout."""
    return Path(shutil.copytree(ROOT / "examples" / "project", tmp_path / "garden"))


def run(site: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120"},
    )  # fmt: skip


def test_the_wheel_is_what_is_imported_and_leaves_other_names_alone(installed, tmp_path):
    code = "import datasets, penstock; print(datasets.load_dataset, penstock.__file__)"
    done = run(installed, tmp_path, sys.executable, "-c", code)
    assert done.stdout.split() == ["theirs", str(installed / "penstock" / "__init__.py")]
    found = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert found - {"__pycache__"} == {"bin", "datasets.py", "penstock"}


def test_a_type_checker_knows_what_a_user_calls(installed, tmp_path):
    """Against the wheel, and against the checkout, which an editable install puts on the path."""
    (tmp_path / "user.py").write_text(TYPED)
    for path in (installed, ROOT / "src"):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "user.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "MYPYPATH": str(path)},
        )  # fmt: skip
        said = [line for line in done.stdout.splitlines() if line.startswith("user.py")]
        assert ["Loader" in said[0], "[arg-type]" in said[1]] == [True, True], done.stdout
        assert len(said) == 2


def test_a_project_of_ones_own_trains_by_the_command_and_by_its_program(installed, project):
    penstock = str(installed / "bin" / "penstock")
    done = run(installed, project, penstock, "train", "experiment=leaves", *QUICK)
    assert done.returncode == 0, done.stderr
    [config] = project.glob("outputs/*/*/config.yaml")
    assert "sampler/every_other" in config.read_text() and "vignette" in config.read_text()
    done = run(
        installed, project, sys.executable, "train.py", "sampler=every_other", "loader=torch",
        "loader.num_workers=2", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("pack", "pack.to=lmdb", "pack.path=packed"),
        ("preview", "preview.samples=2"),
        ("doctor",),
        ("bench", "bench.seconds=0.2", "bench.try_seconds=0", "bench.rounds=1"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_works_from_any_folder(command, installed, tmp_path, data_dir):
    given = [*command, f"data_dir={data_dir}"]
    done = run(installed, tmp_path, str(installed / "bin" / "penstock"), *given)
    assert done.returncode == 0, done.stderr


def test_a_typo_is_answered_with_what_can_be_typed(installed, tmp_path):
    done = run(installed, tmp_path, str(installed / "bin" / "penstock"), "trian")
    assert done.returncode == 2
    assert "did you mean train?" in done.stderr
