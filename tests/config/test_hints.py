"""What a hint says to type works when it is typed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch

from penstock.core.registry import register
from penstock.pipeline.commands import pack  # noqa: F401 - registers its settings
from penstock.pipeline.config import targets
from penstock.pipeline.config.command_line import configure
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.learning.building import build_model


@register("model", "test_timm_style")
def timm_style(*, depth: int = 1, **kwargs: Any) -> torch.nn.Module:
    return torch.nn.Linear(depth, kwargs["num_classes"])


CASES = [
    ("image_size=32", "augment.image_size=32"),
    ("img_size=32", "augment.image_size=32"),
    ("dataset.image_size=32", "augment.image_size=32"),
    ("batch_size=32", "loader.batch_size=32"),
    ("lr=0.1", "optimizer.lr=0.1"),
    ("epochs=3", "trainer.max_epochs=3"),
    ("device=cpu", "trainer.device=cpu"),
    ("trainer.accelerator=cpu", "trainer.device=cpu"),
    ("trainer.precision=16", "trainer.amp=fp16"),
    ("trainer.precision=bf16-mixed", "trainer.amp=bf16"),
    ("trainer.precision=32", "trainer.amp=off"),
    ("use_amp=true", "trainer.amp=fp16"),
    ("fp16=true", "trainer.amp=fp16"),
    ("trainer.val_check_interval=0.5", "trainer.validate_every=1"),
    ("trainer.check_val_every_n_epoch=2", "trainer.validate_every=2"),
    ("trainer.save_every=10", "trainer.checkpoint_every=10"),
    ("check_val_every_n_epoch=2", "trainer.validate_every=2"),
    ("enable_progress_bar=false", "trainer.progress=off"),
    ("trainer.fast_dev_run=true", "debug=one_batch"),
    ("trainer.enable_progress_bar=false", "trainer.progress=off"),
    ("scheduler.warmup_epochs=3", "scheduler.warmup=0.05"),
    ("scheduler.warmup_steps=300", "scheduler.warmup=300"),
    ("loader.generator=x", "seed=1"),
    ("loader.batch_sampler=x",
     "sampler=torch sampler.target=torch.utils.data.BatchSampler sampler.args.drop_last=true"),
    ("shuffle=true", "sampler=random"),
    ("task.class_weight=[1,2]", "task.class_weights=[1,2]"),
    ("dataset=map", "dataset=image_folder"),
    ("dataset.storage.table=t", "dataset=sql dataset.storage.url=sqlite:///file.db"),
    ("transform=RandomCrop",
     "augment.train.my_step._target_=albumentations.RandomCrop"),
    ("sampler=WeightedRandomSampler", "sampler=weighted"),
    ("transform=albumentations.RandomCrop",
     "augment.train.my_step._target_=albumentations.RandomCrop"),
    ("augment.train.my_step._target_=albumentations.RandAugment", "augment=strong"),
    ("image_folder", "dataset=image_folder"),
    ("csv", "dataset=csv or logger=csv"),
    ("sampler=SequentialSampler", "sampler=sequential"),
    ("sampler=torch.utils.data.RandomSampler", "sampler=random"),
    ("sampler=BatchSampler",
     "sampler=torch sampler.target=torch.utils.data.BatchSampler sampler.args.drop_last=true"),
    ("sampler=SubsetRandomSampler",
     "sampler=torch sampler.target=torch.utils.data.SubsetRandomSampler "
     "'sampler.args.indices=[0,1,2]'"),
    ("scheduler=CosineAnnealingLR", "scheduler=cosine"),
    ("scheduler=CosineAnnealingWarmRestarts", "scheduler=none "
     "scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts"),
    ("scheduler=ReduceLROnPlateau", "scheduler=plateau"),
    ("logger=WandbLogger", "logger=wandb"),
    ("ema=true", "callback=ema"),
    ("model_ema_decay=0.99", "callback=ema callback.ema.decay=0.999"),
    ("early_stopping=true", "callback=early_stopping"),
    ("trainer.early_stopping.patience=3", "callback=early_stopping"),
    ("patience=3", "callback=early_stopping callback.early_stopping.patience=5"),
    ("EarlyStopping", "callback=early_stopping"),
    ("callback=EarlyStopping", "callback=early_stopping"),
    ("callbacks=early_stopping", "callback=early_stopping"),
    ("callback=ModelCheckpoint", "trainer.monitor=loss"),
    ("callback.ema.decay=0.9", "callback=ema"),
    ("compile=true", "trainer.compile=true"),
    ("trainer.profile=true", "callback=profile"),
    ("trainer.callbacks=[ema]", "callback=early_stopping"),
    ("optimizer=Adam", "optimizer=adam"),
    ("trainer.resume=true", "trainer.resume=auto"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "typed"), CASES, ids=[given for given, _ in CASES])
def test_what_a_hint_says_to_type_composes(given, typed):
    with pytest.raises(ConfigError) as error:
        compose([given])
    [problem] = error.value.problems
    assert f"type {typed}" in problem.message or f" {typed}" in problem.message
    beside = []
    if "my_step" in typed:
        beside = ["augment.train.my_step.height=16", "augment.train.my_step.width=16"]
    if "WarmRestarts" in typed:
        beside = ["scheduler.T_0=5"]
    compose([*shlex.split(typed.partition(" or ")[0]), *beside])


def test_a_null_of_a_preset_for_another_storage_is_taken_away_as_said():
    given = ["experiment=bccd", "dataset=lmdb", "dataset/annotations=in_records"]
    given += ["dataset.storage.path=demo"]
    with pytest.raises(ConfigError, match=r"type (~dataset\.storage\.labels) to take") as error:
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


def test_what_albumentations_calls_otherwise_is_named():
    step = "augment.train.c._target_=albumentations."
    with pytest.raises(ConfigError, match=r"did you mean albumentations.CoarseDropout\?$"):
        compose([f"{step}Cutout"])
    compose([f"{step}CoarseDropout"])


def test_a_preset_without_its_first_line_is_told_it(tmp_path):
    (folder := tmp_path / "experiment").mkdir()
    (folder / "mine.yaml").write_text("seed: 7\n")
    with pytest.raises(ConfigError, match=r"needs a first line: (# @package _global_)$") as error:
        compose(["experiment=mine"], config_dir=tmp_path)
    line = str(error.value).rpartition("line: ")[2]
    (folder / "mine.yaml").write_text(f"{line}\nseed: 7\n")
    assert compose(["experiment=mine"], config_dir=tmp_path)["seed"] == 7


@pytest.mark.parametrize(
    ("given", "typed"),
    [("storage=zip", "pack.to=zip"), ("pack.storage=parquet", "pack.to=parquet"),
     ("format=lmdb", "pack.to=lmdb"), ("output=folder", "pack.path=folder")],
)  # fmt: skip
def test_what_a_hint_of_packing_says_to_type_is_read(given, typed):
    with pytest.raises(ConfigError, match=f"; type {typed}$"):
        configure(["path=packed", given], command="pack")
    key, _, value = typed.removeprefix("pack.").partition("=")
    assert configure(["path=packed", typed], command="pack")["pack"][key] == value


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
    monkeypatch.setattr(targets, "_own_modules", set())
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
    monkeypatch.setattr(targets, "_own_modules", set())
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
