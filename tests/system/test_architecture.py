"""The components in docs/architecture.md and examples/ work as they stand there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from penstock import build_loader, compose
from penstock.core import registry
from penstock.pipeline.config.components import load_imports, register_components
from penstock.pipeline.learning.building import build_task
from penstock.pipeline.loader import executors
from tests.contracts.engine import check_engine, check_patience
from tests.contracts.sampler import check_sampler
from tests.contracts.task import Linear, check_task

ROOT = Path(__file__).resolve().parents[2]
PAGE, EXAMPLES = ROOT / "docs" / "architecture.md", ROOT / "examples"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(BLOCK.findall(PAGE.read_text()))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a block of the page to a file of its name, registered until the test ends."""
    register_components()
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)

    def write(name: str) -> Path:
        file = tmp_path / f"page_{Path(name).name}"
        text = BLOCKS[name].replace("penstock.datasets.storages.records", "page_records")
        file.write_text(text)
        load_imports([str(file)])
        return file

    yield write
    for name in {*sys.modules} - before:
        if name.startswith("page_") or name in ("executor", "noise"):
            del sys.modules[name]


def test_the_page_is_short():
    assert len(PAGE.read_text().splitlines()) < 380
    assert len(BLOCKS) == 4


def test_the_storage_and_its_writer_keep_their_contracts(written, tmp_path):
    written("datasets/storages/records.py")
    written("tests/datasets/storages/test_records.py")
    tests = importlib.import_module("page_test_records")
    (tmp_path / "storage").mkdir()
    tests.test_storage(tmp_path / "storage")
    (tmp_path / "writer").mkdir()
    tests.test_writer(tmp_path / "writer")
    config = compose(["dataset=records", f"dataset.storage.path={tmp_path / 'storage' / 'a'}"])
    assert config["dataset"]["_target_"] == "dataset/map"


def test_the_sampler_keeps_its_contract(written):
    written("pipeline/samplers/bootstrap.py")
    made = registry.find("sampler/bootstrap").target
    check_sampler(made(n=53), n=53, shuffles=True, exactly_once=False)
    check_sampler(made(n=53, share=0.5), n=53, shuffles=True, exactly_once=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_engine_keeps_its_contract(written, num_workers):
    load_imports([str(EXAMPLES / "executor.py")])
    assert executors.executor_named("executor").__name__ == "PoolExecutor"
    check_engine("executor", num_workers=num_workers)
    if num_workers:
        check_patience("executor", num_workers=num_workers)


def test_the_dataset_type_makes_the_same_batches_by_any_engine(written, tmp_path):
    file = EXAMPLES / "noise.py"
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "noise.yaml").write_text("_target_: dataset/noise\n")
    chosen = [f"imports=[{file}]", "dataset=noise", "dataset.count=40", "loader.batch_size=8"]
    batches = []
    for engine in (["loader=inline"], ["loader=threads", "loader.num_workers=2"]):
        config = compose([*chosen, *engine], config_dir=tmp_path / "conf")
        with build_loader(config) as loader:
            batches.append([batch["image"] for batch in loader])
    assert len(batches[0]) == 5
    assert all((a == b).all() for a, b in zip(*batches, strict=True))


def test_the_task_leaves_rows_out_that_are_not_valid(written):
    written("pipeline/tasks/brightness.py")
    task = build_task({"task": {"_target_": "task/brightness"}}, 0, None)
    images = torch.randint(256, (4, 8, 8, 3), dtype=torch.uint8)
    batch = {"image": images, "x": torch.randn(4, 5), "valid": torch.ones(4, dtype=torch.bool)}
    check_task(task, Linear(5, 1), batch)
    dark = {"image": images * 0, "valid": batch["valid"]}
    assert task.losses(torch.full((4, 1), 2.0), dark)["mse"].item() == 4
