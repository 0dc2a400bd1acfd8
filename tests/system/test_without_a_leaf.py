"""A checkout from which the place of a format was taken away: all the rest is as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAF = "hdf5"
PLACE = (
    f"datasets/storages/{LEAF}", f"conf/dataset/{LEAF}.yaml", f"conf/dataset/storage/{LEAF}.yaml",
)  # fmt: skip
REQUIRED = {
    "torch": ["dataset.target=torch.utils.data.TensorDataset"],
    "stream": ["dataset.source.path=-", "trainer.max_epochs=1"],
    "mix": ["dataset.sources.photos.dataset=image_folder"],
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without the format."""
    others = (".*", "build", "data", "outputs", "*.egg-info", "__pycache__")
    copy = tmp_path_factory.mktemp("without") / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*others))
    for name in PLACE:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return copy


def run(checkout: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "COLUMNS": "120"},
    )  # fmt: skip


def test_no_code_names_it(checkout):
    rooms = ("core", "datasets", "transforms", "pipeline", "conf")
    files = [path for room in rooms for path in (checkout / room).rglob("*.*")]
    code = [path for path in files if path.suffix in (".py", ".yaml")]
    naming = [str(path) for path in code if LEAF in path.read_text("utf-8").lower()]
    assert code and not naming


def test_every_other_option_composes(checkout, tmp_path):
    options = sorted(path.stem for path in (checkout / "conf" / "dataset").glob("*.yaml"))
    chosen = [[f"dataset={option}", *REQUIRED.get(option, ())] for option in options]
    code = (
        "import penstock\n"
        f"for choices in {chosen!r}:\n"
        "    print(penstock.__file__, penstock.compose(choices)['dataset']['_target_'])\n"
    )
    done = run(checkout, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(checkout / "src/penstock/__init__.py")) == len(options) > 10


def test_it_trains_on_another_format(checkout, tmp_path, data_dir):
    done = run(
        checkout, tmp_path, str(checkout / "train.py"), "dataset=lmdb", f"data_dir={data_dir}",
        "trainer.max_steps=3", "trainer.limit_val_batches=2", "loader.batch_size=16",
        "loader.num_workers=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("outputs/*/*/config.yaml"))


def test_help_lists_the_others(checkout, tmp_path):
    done = run(checkout, tmp_path, str(checkout / "train.py"), "--help")
    assert done.returncode == 0, done.stderr
    assert "lmdb" in done.stdout and "webdataset" in done.stdout
    assert LEAF not in done.stdout


@pytest.mark.parametrize("typed", [f"dataset={LEAF}", f"dataset/storage={LEAF}"])
def test_asking_for_it_is_answered_in_one_line(typed, checkout, tmp_path):
    done = run(checkout, tmp_path, str(checkout / "train.py"), typed)
    assert done.returncode != 0
    [_, answer] = done.stderr.strip().splitlines()  # below "1 error in the configuration:"
    assert f"no option '{LEAF}', the options are" in answer and "lmdb" in answer
