"""Common names of other tools: each one is typed, then the line that its error prints."""

from __future__ import annotations

import re
import shlex

import pytest
from torch.distributed.run import parse_args

from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.hints import FOREIGN_NAMES, TORCHRUN

VALUES = {"loader.batch_size": "8", "loader.num_workers": "2", "logger": "csv", "optimizer": "adam",
          "dataset.storage.path": "demo", "outputs": "x", "optimizer.lr": "0.1",
          "trainer.device": "cpu", "trainer.resume": "auto",
          "trainer.monitor_mode": "max"}  # fmt: skip
KEYS = [f"{place}{name}" for name in FOREIGN_NAMES for place in ("", "trainer.", "data.")]
KEYS.remove("data_dir")  # a key of the config, for demo data
LONGER = {
    "num_train_epochs=7": "trainer.max_epochs=7",
    "initial_learning_rate=0.7": "optimizer.lr=0.7",
    "lr_warmup_epochs=7": "scheduler.warmup=0.05",
    "warmup_steps=7": "scheduler.warmup=7",
    "dataloader_pin_memory=true": "loader.pin_memory=true",
    "dataloader_num_workers=2": "loader.num_workers=2",
    "resume_from_checkpoint=auto": "trainer.resume=auto",
    "loader.eval_batch=8": "loader.eval_batch_size=8",
    "per_device_train_batch_size=8": "loader.batch_size=8",
    "per_device_eval_batch_size=8": "loader.eval_batch_size=8",
}


def remedy(given: str) -> str:
    """Return what the one error of `given` says to type."""
    with pytest.raises(ConfigError) as error:
        compose([given])
    [problem] = error.value.problems
    assert problem.key == given.partition("=")[0]
    found = re.search(r"; type ([^;(]+?)(?: \(|$)", problem.message)
    assert found is not None, problem.message
    return found[1]


def test_the_table_has_at_most_40_names():
    assert len(FOREIGN_NAMES) <= 40


@pytest.mark.parametrize("key", KEYS)
def test_the_line_for_a_name_works_when_it_is_typed(key):
    target = FOREIGN_NAMES[key.rpartition(".")[2]]
    value = VALUES.get(target, "3")
    typed = remedy(f"{key}={value}")
    if target == TORCHRUN:
        program, *arguments = shlex.split(typed)
        assert program == "torchrun" and parse_args(arguments).nproc_per_node == "2"
        return
    assert typed == (target if "=" in target else f"{target}={value}")
    for overrides in typed.split(" or "):
        compose(shlex.split(overrides))


def test_the_folder_of_a_dataset_is_not_that_of_demo_data():
    for key in ("dataset.data_dir", "dataset.data_root", "dataset.storage.root"):
        assert remedy(f"{key}=demo") == "dataset.storage.path=demo"


@pytest.mark.parametrize("given", LONGER)
def test_a_longer_name_has_the_remedy_of_its_words(given):
    typed = remedy(given)
    assert typed == LONGER[given]
    compose(shlex.split(typed))


def test_batch_sizes_of_a_device_are_told_that_ours_counts_all_ranks():
    with pytest.raises(ConfigError, match="all ranks"):
        compose(["per_device_train_batch_size=8"])
