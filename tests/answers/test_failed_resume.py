"""A resume that fails leaves every file of the folder that it was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import compose
from penstock.pipeline.training.job import train


@pytest.fixture
def settings(tmp_path):
    rows = np.arange(32, dtype=np.uint8)
    np.save(tmp_path / "image.npy", np.tile(rows[:, None, None, None], (1, 8, 8, 3)))
    np.save(tmp_path / "label.npy", rows.astype(np.int64) % 2)
    return [
        "dataset=memmap",
        f"dataset.storage.path={tmp_path}",
        "augment=as_is",
        "model.width=8",
        "loader=inline",
        "loader.batch_size=8",
        f"outputs={tmp_path}/outputs",
        "trainer.device=cpu",
        "trainer.max_epochs=1",
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path): path.read_bytes() for path in found if path.name != "log.txt"}


@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.parametrize("fault", ["checkpoint", "data"])
def test_a_failed_resume_removes_nothing(settings, tmp_path, fault, has_config):
    run = Path(train(compose(settings))["run_dir"])
    config = compose([*settings, "trainer.max_epochs=2"])
    config["trainer"]["resume"] = str(run)
    if fault == "checkpoint":
        for path in run.glob("checkpoints/*.pt"):
            path.write_bytes(b"damaged")
    else:
        (tmp_path / "label.npy").unlink()
    if not has_config:
        (run / "config.yaml").unlink()
    before = files_of(run)
    with pytest.raises(ValueError):
        train(config)
    assert files_of(run) == before and any("checkpoints" in name for name in before)


def test_a_new_run_that_fails_leaves_no_folder(settings, tmp_path):
    config = compose(settings)
    (tmp_path / "label.npy").write_bytes(b"damaged")
    with pytest.raises(ValueError):
        train(config)
    assert not list(tmp_path.glob("outputs/*"))
    kept = tmp_path / "outputs" / "notes"
    kept.mkdir(parents=True)
    with pytest.raises(ValueError):
        train(config)
    assert list(tmp_path.glob("outputs/*")) == [kept]
