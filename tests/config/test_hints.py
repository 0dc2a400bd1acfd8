"""The remedy of a mistake composes when it is typed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch

from penstock.core.registry import register
from penstock.pipeline.commands import pack  # noqa: F401 - registers its settings
from penstock.pipeline.config import libraries
from penstock.pipeline.config.command_line import configure
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.learning.building import build_model


@register("model", "test_timm_style")
def timm_style(*, depth: int = 1, **kwargs: Any) -> torch.nn.Module:
    return torch.nn.Linear(depth, kwargs["num_classes"])


CASES = [
    ("batch_size=32", "loader.batch_size=32"),
    ("image_size=32", "augment.image_size=32"),
    ("dataset.image_size=32", "augment.image_size=32"),
    ("dataset.path=demo", "dataset.storage.path=demo"),
    ("trainer.seed=3", "seed=3"),
    ("trainer.warmup=0.1", "scheduler.warmup=0.1"),
    ("device=cpu", "trainer.device=cpu"),
    ("device=0", "trainer.device=cuda:0"),
    ("amp=true", "trainer.amp=bf16"),
    ("cache=ram", "dataset/cache=ram"),
    ("task.class_weight=[1,2]", "task.class_weights=[1,2]"),
    ("image_folder", "dataset=image_folder"),
    ("csv", "dataset=csv or logger=csv"),
    ("EarlyStopping", "callback=early_stopping"),
    ("ema=true", "callback=ema"),
    ("mixup=0.2", "batch_transform=mixup"),
    ("trainer.early_stopping.patience=3", "callback=early_stopping"),
    ("callback.ema.decay=0.9", "callback=ema"),
    ("callbacks=early_stopping", "callback=early_stopping"),
    ("optimizer=Adam", "optimizer=adam"),
    ("optim=adamw_torch", "optimizer=adamw"),
    ("logger=WandbLogger", "logger=wandb"),
    ("dataset=npy", "dataset=npy_shards"),
    ("dataset=coco", "dataset=image_folder dataset/annotations=coco"),
    ("sampler=WeightedRandomSampler", "sampler=weighted"),
    ("sampler=DistributedSampler", "sampler=random"),
    ("sampler=torch.utils.data.RandomSampler", "sampler=random"),
    ("sampler=SubsetRandomSampler",
     "sampler=torch sampler.target=torch.utils.data.SubsetRandomSampler"),
    ("scheduler=CosineAnnealingWarmRestarts", "scheduler=none "
     "scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts"),
    ("scheduler=ReduceLROnPlateau", "scheduler=plateau"),
    ("transform=albumentations.RandomCrop",
     "augment.train.my_step._target_=albumentations.RandomCrop"),
    ("trainer.resume=true", "trainer.resume=auto"),
]  # fmt: skip
BESIDE = {
    "RandomCrop": ["augment.train.my_step.height=16", "augment.train.my_step.width=16"],
    "WarmRestarts": ["scheduler.T_0=5"],
    "SubsetRandomSampler": ["sampler.args.indices=[0,1,2]"],
}


@pytest.mark.parametrize(("given", "typed"), CASES, ids=[given for given, _ in CASES])
def test_the_closest_match_composes(given, typed):
    with pytest.raises(ConfigError) as error:
        compose([given])
    [problem] = error.value.problems
    assert f"type {typed}" in problem.message
    beside = next((more for name, more in BESIDE.items() if typed.endswith(name)), [])
    for overrides in typed.split(" or "):
        compose([*shlex.split(overrides), *beside])


@pytest.mark.parametrize("given", ["optimizer.llrd=0.3", "lrf=0.01", "min_lr=0.1", "hflip=0.5"])
def test_no_remedy_gives_a_value_to_a_key_of_another_meaning(given):
    with pytest.raises(ConfigError) as error:
        compose([given])
    [problem] = error.value.problems
    assert problem.key == given.partition("=")[0] and "type " not in problem.message


def test_a_name_of_a_source_chooses_the_source():
    with pytest.raises(ConfigError, match="type dataset=stream dataset/source=kafka"):
        compose(["dataset=kafka"])
    compose(["dataset=stream", "dataset/source=kafka", "dataset.source.topic=photos"])


def test_a_null_of_a_preset_for_another_storage_is_taken_away_as_said():
    given = ["experiment=bccd", "dataset=lmdb", "dataset/annotations=in_records"]
    given += ["dataset.storage.path=demo"]
    with pytest.raises(ConfigError, match=r"type (~dataset\.storage\.labels) to remove") as error:
        compose(given)
    typed = str(error.value).rpartition("type ")[2].split()[0]
    assert "labels" not in compose([*given, typed])["dataset"]["storage"]
    with pytest.raises(ConfigError, match="there is nothing of this name to take away"):
        compose([*given, typed, "~dataset.storage.nothing"])


@pytest.mark.parametrize(
    ("step", "given"),
    [("augment.train.c", "size=16"), ("augment.train.c", "size=[16,16]"),
     ("augment", "image_size=16")],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "augment."])
def test_a_size_of_what_takes_height_and_width_is_typed_as_these(step, given, before):
    chosen = ["task=detection"]
    key = f"{before}{given}"
    if step != "augment":
        chosen, key = [f"{step}._target_=albumentations.RandomCrop"], f"{step}.{given}"
    typed = f"{step}.height=16 {step}.width=16"
    with pytest.raises(ConfigError, match=rf"type {typed}\b"):
        compose([*chosen, key])
    compose([*chosen, *typed.split()])


def test_a_value_that_the_shell_split_is_shown_in_quotes():
    with pytest.raises(ConfigError, match=r"; type 'sampler.weights=\{cat: 1, dog: 2\}'$"):
        compose(["sampler=weighted", "sampler.weights={cat:", "1,", "dog:", "2}"])
    compose(["sampler=weighted", "sampler.weights={cat: 1, dog: 2}"])


def test_a_preset_without_its_first_line_is_told_it(tmp_path):
    (folder := tmp_path / "experiment").mkdir()
    (folder / "mine.yaml").write_text("seed: 7\n")
    with pytest.raises(ConfigError, match=r"needs a first line: (# @package _global_)$") as error:
        compose(["experiment=mine"], config_dir=tmp_path)
    line = str(error.value).rpartition("line: ")[2]
    (folder / "mine.yaml").write_text(f"{line}\nseed: 7\n")
    assert compose(["experiment=mine"], config_dir=tmp_path)["seed"] == 7


@pytest.mark.parametrize(
    "given", [["pack.compression=zstd"], ["to=lmdb", "writer.compression=zstd"]]
)
def test_what_can_compress_is_said_to_be_typed(given):
    typed = "pack.to=parquet writer.compression=zstd"
    with pytest.raises(ConfigError, match=f"type {typed}$"):
        configure(["path=packed", *given], command="pack")
    assert configure(["path=packed", *typed.split()], command="pack")["writer"][
        "compression"] == "zstd"  # fmt: skip


OWN = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.head = torch.nn.Linear(width, num_classes)

class Wrapped(Net):
    def __init__(self, width=4, **kwargs):
        super().__init__(width, **kwargs)

class Alone(torch.nn.Linear):
    def __init__(self, **kwargs):
        super().__init__(2, 5, **kwargs)

class Plain: ...

class Slow(torch.optim.SGD): ...

def net(): ...
"""


def test_classes_of_a_module_that_imports_names_are_taken(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_own_modules", set())
    typed = ["model=module", "model.module._target_=own_nets.Net", "model.module.width=5"]
    with pytest.raises(ConfigError, match=r"type imports=\[own_nets\] too; a component of your"):
        compose(typed)
    imports = "imports=[own_nets]"
    config = compose([imports, *typed])
    assert build_model(config, 3).module.head.out_features == 3, "the data's classes"
    config = compose([imports, *typed, "model.module.num_classes=7"])
    assert build_model(config, 3).module.head.out_features == 7
    compose([imports, "optimizer._target_=own_nets.Slow"])
    for name in ("Plain", "net", "os.system", "torch.load", "nothing"):
        with pytest.raises(ConfigError, match=rf"own_nets.{name}' is none of the classes"):
            compose([imports, "model=module", f"model.module._target_=own_nets.{name}"])
    with pytest.raises(ConfigError, match=r"type model=module model.module._target_=own_nets.Net"):
        compose([imports, "model._target_=own_nets.Net"])
    with pytest.raises(ConfigError, match="unknown key"):
        compose([imports, *typed, "model.module.widht=5"])


def test_a_model_that_takes_any_argument_is_told_the_classes_if_it_hands_them_on(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_own_modules", set())
    typed = ["imports=[own_nets]", "model=module", "model.module._target_=own_nets.Wrapped"]
    assert build_model(compose(typed), 3).module.head.out_features == 3
    config = compose([*typed, "model.module.num_classes=7"])
    assert build_model(config, 3).module.head.out_features == 7
    assert not caplog.messages
    config = compose([*typed[:2], "model.module._target_=own_nets.Alone"])
    assert build_model(config, 3).module.out_features == 5
    assert caplog.messages == ["own_nets.Alone takes no num_classes, and the data has 3"]
    with pytest.raises(ValueError, match=r"cannot be made: .*unexpected keyword argument 'hight'"):
        build_model(compose([*typed, "+model.module.hight=7"]), 3)


def test_a_registered_model_that_takes_any_argument_is_told_the_classes():
    assert (
        build_model(compose(["model=test_timm_style", "model.depth=2"]), 3).module.out_features == 3
    )


def test_an_experiment_is_named_not_pathed(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    with pytest.raises(ConfigError, match=f"type --config-dir {tmp_path} experiment=mine"):
        compose([f"experiment={folder / 'mine.yaml'}"])
    assert compose(["experiment=mine"], config_dir=tmp_path)["seed"] == 7


def test_an_override_that_would_change_nothing_is_refused(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    text = "# @package _global_\ndefaults:\n  - override {}\n"
    for override in ("nonsense: foo", "/nonsense: foo"):
        (folder / "mine.yaml").write_text(text.format(override))
        with pytest.raises(ConfigError, match="do not have; the groups are augment, "):
            compose(["experiment=mine"], config_dir=tmp_path)
    (folder / "mine.yaml").write_text(text.format("optimizer: sgd"))
    with pytest.raises(ConfigError, match="write 'override /optimizer: sgd'"):
        compose(["experiment=mine"], config_dir=tmp_path)
    (folder / "mine.yaml").write_text(text.format("/optimizer: sgd"))
    assert compose(["experiment=mine"], config_dir=tmp_path)["optimizer"]["_target_"].endswith(
        "SGD"
    )


def test_a_variable_at_the_top_is_one_that_something_refers_to(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    text = "# @package _global_\nside: 48\naugment: {image_size: '${side}'}\n"
    (folder / "mine.yaml").write_text(text)
    config = compose(["experiment=mine", "side=32"], config_dir=tmp_path)
    assert config["augment"]["image_size"] == 32
