"""`compose`: choices and values make a plain config, and Hydra's own state is left alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hydra import initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra

from penstock import compose
from penstock.pipeline import config as room
from penstock.pipeline.config.errors import ConfigError

MIX = ("dataset=mix dataset.sources.photos.dataset=image_folder dataset.sources.photos.weight=3 "
       "dataset.sources.packed.dataset=lmdb ")  # fmt: skip
SOURCES = "dataset.sources"
PARTS = f"imports=[{Path(__file__).resolve().parents[2]}/examples/my_components.py]"
TORCH = "dataset=torch dataset.target=tests.torch_datasets.Squares"
STREAM = (
    "dataset=torch dataset.target=tests.laws.torch_components.PhotoStream dataset.args={root:.} "
)
# Overrides, and values at full keys of the config; `key.*` lists the keys of a mapping.
CASES: list[tuple[str, dict]] = [
    ("dataset=lmdb loader.num_workers=3",
     {"dataset._target_": "dataset/map", "dataset.storage._target_": "storage/lmdb",
      "loader.num_workers": 3, "loader.prefetch_factor": 2}),
    *((f"{sign}loader.eval_batch_size=3 {sign}debug=overfit",
       {"loader.eval_batch_size": 3, "trainer.overfit_batches": 2,
        "augment.train.resize._target_": "transform/resize"}) for sign in ("", "+", "++")),
    ("experiment=weighted sampler=random debug=one_batch",
     {"sampler": {"_target_": "sampler/random"}, "trainer.limit_train_batches": 1}),
    ("experiment=in_memory", {"dataset._target_": "dataset/eager"}),
    ("~augment.train.flip augment.train.crop.scale=[0.5,1] augment.eval.resize=null "
     "augment.train.blur={_target_:albumentations.Blur,_after_:crop}",
     {"augment.train.*": ["crop", "blur"], "augment.train.crop.scale": [0.5, 1],
      "augment.train.blur": {"_target_": "albumentations.Blur", "_after_": "crop"},
      "augment.eval": {"resize": None}}),
    ("augment=none augment.train=null augment.eval=null",
     {"augment.train": {}, "augment.eval": {}}),
    ("augment=none ~augment.train.resize",
     {"augment.eval.*": ["resize"], "augment.device.*": ["normalize"]}),
    ("augment=none augment.train.flip=null", {"augment.train.flip": None}),
    ("augment=light augment.train.blur=null", {"augment.train.blur": None}),
    ("augment.image_size=32",
     {"augment.train.crop.size": 32, "augment.eval.resize.size": 32}),
    ("~scheduler", {"scheduler": None}), ("scheduler=null", {"scheduler.*": ["_target_"]}),
    ("logger=null", {"logger": {}}), ("logger=tensorboard", {"logger.*": ["csv", "tensorboard"]}),
    ("logger=tensorboard logger=mlflow logger.mlflow.experiment=mine",
     {"logger.*": ["csv", "tensorboard", "mlflow"], "logger.mlflow.experiment": "mine"}),
    ("callback=[ema,early_stopping] callback.ema.decay=0.9",
     {"callback.*": ["ema", "early_stopping"], "callback.ema.decay": 0.9}),
    ("callback=ema callback=early_stopping callback=ema callback.ema=null",
     {"callback.*": ["ema", "early_stopping"], "callback.ema": None}),
    *((f"task=detection {data}", {"task._target_": "task/detection", "dataset.annotations": ...})
      for data in ("dataset=stream", TORCH)),
    *((STREAM + more, {"sampler._target_": "sampler/sequential", "scheduler._target_": schedule})
      for more, schedule in {
          "": "scheduler/none", "sampler=sequential": "scheduler/none",
          "trainer.max_steps=9": "scheduler/cosine",
          "scheduler=step": "torch.optim.lr_scheduler.StepLR"}.items()),
    (f"{PARTS} dataset=npz dataset.storage.path=. sampler=repeated sampler.times=4 "
     "transform=exposure augment.train.exposure.stops=2",
     {"dataset._target_": "dataset/map", "dataset.decode._target_": "decode/image",
      "dataset.storage": {"_target_": "storage/npz", "path": "."},
      "sampler": {"_target_": "sampler/repeated", "times": 4}, "augment.train.exposure.stops": 2,
      "augment.train.*": ["crop", "flip", "exposure"]}),
    ("sampler=identity", {"sampler._target_": "sampler/identity"}),
    ("callback=ema trainer.validate_every=0", {"callback.*": ["ema"]}),
    ("loader.num_workers=1024", {"loader.num_workers": 1024}),
    (f"{MIX} {SOURCES}.more.dataset.decode=raw {SOURCES}.more.dataset=memmap "
     f"{SOURCES}.more.weight=2 {SOURCES}.photos.dataset=zip {SOURCES}.photos.sampler=weighted "
     f"{SOURCES}.packed=null {SOURCES}.photos.sampler.replacement=false",
     {f"{SOURCES}.*": ["photos", "packed", "more"], f"{SOURCES}.packed": None,
      f"{SOURCES}.photos.dataset.storage._target_": "storage/zip", f"{SOURCES}.photos.weight": 3,
      f"{SOURCES}.photos.sampler.replacement": False, f"{SOURCES}.more.weight": 2,
      f"{SOURCES}.more.dataset.decode._target_": "decode/raw", f"{SOURCES}.more.sampler": None,
      "sampler": {"_target_": "sampler/mix"}}),
    *((f"task={task} {MIX}{SOURCES}.packed.dataset.annotations=in_records",
       {f"{SOURCES}.photos.dataset.annotations": None, "dataset.annotations": ...,
        f"{SOURCES}.packed.dataset.annotations._target_": "annotations/in_records"})
      for task in ("detection", "segmentation", "multilabel")),
]  # fmt: skip


def value_at(config: dict, key: str):
    """Return the value at a full key, or an ellipsis if there is none."""
    value = config
    for name in key.split("."):
        value = [*value] if name == "*" else value.get(name, ...)
    return value


@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_overrides_make_a_plain_config(typed, expected):
    config = compose(typed.split())
    assert {key: value_at(config, key) for key in expected} == expected
    assert config == json.loads(json.dumps(config)) == compose(typed.split())


@pytest.mark.parametrize(
    "path",
    ["s3://b/year=2024/x", "shard-{000..009}.tar", "{000..099}", "~/x", "a b (c).jpg", "a(1).jpg",
     "фото/я.jpg", "写真/é.png", "img_{:07d}.jpg", "it's (1).png", r"(?P<label>n\d+)_\d+",
     'say "x" (1)', "a,(b", "x[1.jpg", "a:b", "50%", "a@b", "x#1"],
)  # fmt: skip
def test_a_value_arrives_as_typed(path: str):
    assert compose([f"outputs={path}"])["outputs"] == path


@pytest.mark.parametrize(
    "path", ["/no/s-{000..099}.tar", "/no/*.tar", "[/no/s-{0..9}.tar,/no/я,/no/a(1)]",
             "/no/{a,b}.tar"]
)  # fmt: skip
def test_elements_and_patterns_arrive_as_typed(path: str):
    typed = [f"dataset.storage.path={path}", "dataset.storage.fields={image: jpg;png, label: cls}"]
    storage = compose(["dataset=webdataset", *typed])["dataset"]["storage"]
    assert storage["path"] == (path[1:-1].split(",") if path[0] == "[" else path)
    assert storage["fields"] == {"image": "jpg;png", "label": "cls"}


def test_an_application_of_hydra_around_it_is_left_alone(tmp_path):
    base = version.VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    assert compose(["seed=8"])["seed"] == 8 and not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        inside = GlobalHydra.instance().hydra
        assert compose(["seed=9"])["seed"] == 9
        with pytest.raises(ConfigError):
            compose(["seed=x", "sampler=nope"])
        assert GlobalHydra.instance().hydra is inside and str(version.getbase()) == "1.2"
    version.VersionBase.instance().version_base = base


def test_the_room_uses_public_names_of_libraries_alone():
    private = re.compile(r"\b(hydra|omegaconf|pydantic)(\.\w+)*\._")
    files = Path(str(room.__file__)).parent.rglob("*.py")
    assert [file.name for file in files if private.search(file.read_text())] == []


@pytest.fixture
def composed_with(tmp_path):
    """Compose with an option of the user's own folder."""

    def composed(text: str, *typed: str, group: str = "experiment") -> dict:
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "mine.yaml").write_text(text)
        return compose([f"{group}=mine", *typed], config_dir=tmp_path)

    return composed


def test_a_preset_of_ones_own_has_choices_variables_and_callbacks(composed_with):
    config = composed_with(
        "# @package _global_\n# mine\ndefaults: [{/callback: [ema, profile]}, "
        "{override /sampler: weighted}]\nside: 48\naugment: {image_size: '${side}'}\n"
        "callback: {ema: {decay: 0.99}, stop: {_target_: callback/early_stopping}}\n",
        "side=32", "callback.stop.patience=2",
    )  # fmt: skip
    assert config["sampler"]["_target_"] == "sampler/weighted"
    assert config["augment"]["train"]["crop"]["size"] == 32
    assert [*config["callback"]] == ["ema", "profile", "stop"]
    assert config["callback"]["ema"]["decay"] == 0.99
    assert config["callback"]["stop"]["patience"] == 2


@pytest.mark.parametrize(
    ("device", "expected"), [("", ["normalize"]), ("device: null", []), ("device: {}", [])]
)
def test_an_augmentation_without_device_steps_normalises_there(device, expected, composed_with):
    text = f"train: {{one: {{_target_: albumentations.HorizontalFlip}}}}\neval: {{}}\n{device}"
    assert [*composed_with(text, group="augment")["augment"]["device"]] == expected
