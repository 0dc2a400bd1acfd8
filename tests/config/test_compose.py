"""`compose`: what choices and values make, and that it disturbs nothing."""

from __future__ import annotations

import json

import pytest

from penstock.core import registry
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError

pytestmark = pytest.mark.usefixtures("composed_anew")


def test_the_config_is_plain_and_the_same_each_time():
    first = compose(["dataset=lmdb", "loader.num_workers=3"])
    second = compose(["dataset=lmdb", "loader.num_workers=3"])
    assert first == second == json.loads(json.dumps(first))
    assert first["dataset"]["_target_"] == "dataset/map"
    assert first["dataset"]["storage"]["_target_"] == "storage/lmdb"
    assert first["loader"]["num_workers"] == 3
    assert "hydra" not in first


def test_an_augmentation_that_says_nothing_of_the_device_normalises_there(tmp_path):
    folder = tmp_path / "augment"
    folder.mkdir()

    def device_of(step, device=""):
        text = f"train: {{one: {{_target_: {step}}}}}\neval: {{}}\n{device}"
        (folder / "mine.yaml").write_text(text)
        return compose(["augment=mine"], config_dir=tmp_path)["augment"]["device"]

    flip = "albumentations.HorizontalFlip"
    assert [*device_of(flip)] == ["normalize"]
    assert device_of(flip) == compose(["augment=none"])["augment"]["device"]
    for given in ("device: null", "device: {}"):
        assert device_of(flip, given) == {}
    for step in ("albumentations.Normalize", "albumentations.ToTensorV2"):
        assert device_of(step) == {}, "these have done it already"


def test_defaults_of_components_are_written_out():
    loader = compose()["loader"]
    assert loader["prefetch_factor"] == 2
    assert loader["multiprocessing_context"] == "forkserver"


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_sign_makes_no_difference_to_what_is_accepted(sign: str):
    config = compose([f"{sign}loader.eval_batch_size=3", f"{sign}debug=overfit"])
    assert config["loader"]["eval_batch_size"] == 3
    assert config["trainer"]["overfit_batches"] == 2
    assert config["augment"]["train"]["resize"]["_target_"] == "albumentations.Resize"


@pytest.mark.parametrize("preset", ["debug=overfit", "debug=one_batch", "experiment=weighted",
                                    "experiment=in_memory"])  # fmt: skip
def test_presets_compose(preset: str):
    assert compose([preset]) == compose([f"+{preset}"])


def test_a_choice_on_the_command_line_beats_a_preset():
    config = compose(["experiment=weighted", "sampler=random", "debug=one_batch"])
    assert config["sampler"] == {"_target_": "sampler/random"}
    assert config["trainer"]["limit_train_batches"] == 1


def test_steps_are_changed_added_placed_and_taken_out():
    config = compose([
        "~augment.train.flip",
        "augment.train.crop.scale=[0.5,1]",
        "augment.train.blur={_target_: albumentations.Blur, _after_: crop}",
        "augment.eval.resize=null",
    ])  # fmt: skip
    train = config["augment"]["train"]
    assert "flip" not in train
    assert train["crop"]["scale"] == [0.5, 1]
    assert train["blur"] == {"_target_": "albumentations.Blur", "_after_": "crop"}
    assert config["augment"]["eval"] == {"resize": None}


def test_a_variable_of_a_stack_reaches_what_refers_to_it():
    augment = compose(["augment.image_size=32"])["augment"]
    assert augment["train"]["crop"]["size"] == [32, 32]
    assert augment["eval"]["resize"]["height"] == 32


def test_null_takes_a_component_out_where_that_is_possible():
    assert compose(["scheduler=null"])["scheduler"] in (None, {"_target_": "scheduler/none"})
    assert compose(["~scheduler"])["scheduler"] is None
    assert compose(["logger=null"])["logger"] == {}


@pytest.mark.parametrize(
    "dataset", ["dataset=stream", "dataset=torch dataset.target=tests.torch_datasets.Squares"]
)
def test_a_task_that_chooses_annotations_takes_data_that_brings_its_own(dataset):
    config = compose(["task=detection", *dataset.split()])
    assert config["task"]["_target_"] == "task/detection"
    assert "annotations" not in config["dataset"]


def test_loggers_stand_side_by_side():
    assert set(compose(["logger=tensorboard"])["logger"]) == {"csv", "tensorboard"}
    assert set(compose(["logger=[csv,tensorboard]"])["logger"]) == {"csv", "tensorboard"}
    both = compose(["logger=tensorboard", "logger=mlflow", "logger.mlflow.experiment=mine"])
    assert set(both["logger"]) == {"csv", "tensorboard", "mlflow"}


def test_any_torch_module_with_its_positional_arguments():
    config = compose([
        "model=module",
        "model.module._target_=torch.nn.Sequential",
        "model.module._args_=[{_target_: torch.nn.Flatten}, "
        "{_target_: torch.nn.Linear, in_features: 2, out_features: 3}]",
    ])  # fmt: skip
    assert config["model"]["module"]["_args_"][1]["out_features"] == 3
    with pytest.raises(ConfigError, match=r"model\.module\._args_\.0\.in_featurs"):
        compose(["model=module", "model.module._target_=torch.nn.Sequential",
                 "model.module._args_=[{_target_:torch.nn.Linear,in_featurs:2}]"])  # fmt: skip


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    @registry.register("sampler", "fake_sampler")
    class FakeSampler:
        """Nothing in particular."""

        def __init__(self, n: int, seed: int, *, images_per_identity: int = 2): ...

    @registry.register("transform", "fake_transform")
    def fake_transform(sample, rng, *, strength: float = 1.0):
        """Does nothing."""

    @registry.register("storage", "fake_storage")
    class FakeStorage:
        """Holds nothing."""

        def __init__(self, url: str): ...

    @registry.register("logger", "fake_logger")
    def fake_logger(run_dir, *, project: str = "x"):
        """Says nothing."""


@pytest.mark.usefixtures("registered")
def test_registering_is_all_it_takes():
    config = compose([
        "sampler=fake_sampler", "sampler.images_per_identity=4",
        "transform=fake_transform", "augment.train.fake_transform.strength=2",
        "dataset/storage=fake_storage", "dataset.storage.url=sql://x",
        "logger=fake_logger",
    ])  # fmt: skip
    assert config["sampler"] == {"_target_": "sampler/fake_sampler", "images_per_identity": 4}
    assert list(config["augment"]["train"])[-1] == "fake_transform"
    assert config["augment"]["train"]["fake_transform"]["strength"] == 2
    assert config["dataset"]["storage"] == {"_target_": "storage/fake_storage", "url": "sql://x"}
    assert config["logger"]["fake_logger"]["project"] == "x"
    assert "csv" in config["logger"]


@pytest.mark.usefixtures("registered")
def test_a_storage_that_is_registered_is_a_data_set_too():
    config = compose(["dataset=fake_storage", "dataset.storage.url=sql://x"])
    assert config["dataset"]["_target_"] == "dataset/map"
    assert config["dataset"]["storage"] == {"_target_": "storage/fake_storage", "url": "sql://x"}
    assert config["dataset"]["decode"]["_target_"] == "decode/image"
    assert compose(["dataset=lmdb"])["dataset"]["storage"]["_target_"] == "storage/lmdb"


def test_it_works_inside_of_hydra_and_leaves_its_state_alone(tmp_path):
    from hydra import version
    from hydra.core.global_hydra import GlobalHydra
    from hydra.initialize import initialize_config_dir

    base = version.VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    compose(["seed=3"])
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        inside = GlobalHydra.instance().hydra
        assert compose(["seed=3"])["seed"] == 3
        assert GlobalHydra.instance().hydra is inside
        assert str(version.getbase()) == "1.2"
    version.VersionBase.instance().version_base = base


@pytest.mark.parametrize(
    "path", ["/no/s-{000..099}.tar", "/no/*.tar", "[/no/s-{0..9}.tar,/no/a.tar]", "/no/{a,b}.tar"]
)
def test_patterns_of_data_can_be_typed(path: str):
    typed = [f"dataset.storage.path={path}", "dataset.storage.fields={image: jpg;png, label: cls}"]
    node = compose(["dataset=webdataset", *typed])["dataset"]["storage"]
    assert node["path"] == (path[1:-1].split(",") if path[0] == "[" else path)
    assert node["fields"] == {"image": "jpg;png", "label": "cls"}


def test_options_of_ones_own_come_from_a_folder(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# mine\ndefaults:\n  - override /sampler: weighted\nside: 32\n"
        "augment:\n  image_size: ${side}\n"
    )
    config = compose(["experiment=mine"], config_dir=tmp_path)
    assert config["sampler"]["_target_"] == "sampler/weighted"
    assert config["augment"]["train"]["crop"]["size"] == [32, 32]


def test_callbacks_are_added_to_one_another_typed_or_in_a_preset(tmp_path):
    together = compose(["callback=[ema,early_stopping]", "callback.ema.decay=0.9"])["callback"]
    assert [*together] == ["ema", "early_stopping"] and together["ema"]["decay"] == 0.9
    one_by_one = ["callback=ema", "callback=early_stopping", "callback=ema"]
    assert [*compose(one_by_one)["callback"]] == ["ema", "early_stopping"]
    assert compose([*one_by_one, "callback.ema=null"])["callback"]["ema"] is None
    (folder := tmp_path / "experiment").mkdir()
    (folder / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [{/callback: [ema, profile]}]\n"
        "callback: {ema: {decay: 0.99}, stop: {_target_: callback/early_stopping}}\n"
    )
    config = compose(["experiment=mine", "callback.stop.patience=2"], config_dir=tmp_path)
    assert [*config["callback"]] == ["ema", "profile", "stop"]
    assert config["callback"]["ema"]["decay"] == 0.99
    assert config["callback"]["stop"]["patience"] == 2


@pytest.mark.parametrize(
    "overrides",
    [
        ["sampler=identity"],
        ["callback=ema", "trainer.validate_every=0"],
        ["dataset=stream", "dataset/source=sql", "dataset.source.url=sqlite:///a.db"],
        ["augment=none", "augment.train.flip=null"],
        ["augment=light", "augment.train.blur=null"],
        ["loader.num_workers=1024"],
    ],
)
def test_what_is_near_a_mistake_and_right_composes(overrides):
    compose(overrides)


def test_a_stream_of_torch_brings_a_sampler_and_a_schedule_that_fit_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "streamed_sets.py").write_text(
        "from torch.utils.data import IterableDataset\nclass Stream(IterableDataset): ...\n"
    )
    stream = ["dataset=torch", "dataset.target=streamed_sets.Stream"]
    config = compose(stream)
    assert config["sampler"]["_target_"] == "sampler/sequential"
    assert config["scheduler"]["_target_"] == "scheduler/none"
    assert "cosine" in compose([*stream, "trainer.max_steps=9"])["scheduler"]["_target_"]
    assert "StepLR" in compose([*stream, "scheduler=step"])["scheduler"]["_target_"]
    assert compose([*stream, "sampler=sequential"]) == config


def test_an_emptied_stack_leaves_the_others_alone():
    config = compose(["augment=none", "augment.train=null", "augment.eval=null"])
    assert not config["augment"]["train"] and not config["augment"]["eval"]
    assert compose(["augment=none", "~augment.train.resize"])["augment"]["eval"]["resize"]
