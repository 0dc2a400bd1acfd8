"""Every kind of mistake, and the line that reports it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from penstock.core import registry
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.loader.settings import LoaderSettings


def lines(*overrides: str) -> dict[str, str]:
    """Messages by key of what is wrong with the overrides."""
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("override", "key", "said"),
    [
        ("sampler=wieghted", "sampler", "type sampler=weighted"),
        ("optimiser=adam", "optimiser", "type optimizer=adam"),
        ("dataset/storge=lmdb", "dataset/storge", "type dataset/storage=lmdb"),
        ("dataset.storage=lmdb", "dataset.storage", "type dataset/storage=lmdb"),
        ("dataset/storage/path=x", "dataset/storage/path", "type dataset.storage.path=x"),
        ("experiment=imagnet", "experiment", "type experiment=imagenet"),
        ("debug=one_bach", "debug", "type debug=one_batch"),
        ("loader.workers=3", "loader.workers", "type loader.num_workers=3"),
        ("loader.num_worker=3", "loader.num_worker", "type loader.num_workers=3"),
        ("+loader.num_worker=3", "loader.num_worker", "type loader.num_workers=3"),
        ("++loader.num_worker=3", "loader.num_worker", "type loader.num_workers=3"),
        ("loader.shuffle=true", "loader.shuffle", "sampler=random or sampler=sequential"),
        ("trainer.epochs=3", "trainer.epochs", "type trainer.max_epochs=3"),
        ("trainer.gpus=2", "trainer.gpus", "torchrun"),
        ("lr=0.1", "lr", "type optimizer.lr=0.1"),
        ("batch_size=8", "batch_size", "type loader.batch_size=8"),
        ("hydra.run.dir=x", "hydra.run.dir", "type outputs=<folder>"),
        ("hydra/launcher=joblib", "hydra/launcher", "add -m"),
        ("loader.batch_size=big", "loader.batch_size", "accepts an integer >= 1"),
        ("loader.batch_size=0", "loader.batch_size", "accepts an integer >= 1"),
        ("loader.batch_size=64.0", "loader.batch_size", "type loader.batch_size=64"),
        ("loader.batch_size=true", "loader.batch_size", "accepts an integer >= 1"),
        ("loader.batch_size='64'", "loader.batch_size", "'64' given, accepts an integer"),
        ("loader.on_error=rais", "loader.on_error", "type loader.on_error=raise"),
        ("loader.drop_last=pads", "loader.drop_last", "accepts true or false or pad"),
        ("loader.max_error_rate=1.5", "loader.max_error_rate", "<= 1"),
        ("trainer.max_epochs=None", "trainer.max_epochs", "type trainer.max_epochs=null"),
        ("seed=-1", "seed", "accepts an integer >= 0"),
        ("scheduler.warmup=-1", "scheduler.warmup", "accepts a number >= 0"),
        ("scheduler.warmpu=3", "scheduler.warmpu", "type scheduler.warmup=3"),
        ("optimizer.groups.head.lr=1", "optimizer.groups.head.params", "head.params=[head]"),
        ("optimizer.groups.a={params:[b],lrr:1}", "optimizer.groups.a.lrr", "groups.a.lr=1"),
        ("optimizer.groups.a={params:[b],lr:x}", "optimizer.groups.a.lr", "accepts a number"),
        ("optimizer.layer_decy=0.5", "optimizer.layer_decy", "type optimizer.layer_decay=0.5"),
        ("task.label_smoothing=2", "task.label_smoothing", "accepts a number >= 0 and <= 1"),
        ("task.top_k=0", "task.top_k", "accepts an integer >= 1"),
        ("model.width=20", "model.width", "accepts an integer >= 8 and a multiple of 8"),
        ("data_dir=${nope}", "data_dir", "no key 'nope'"),
        ("data_dir=${data_dir}", "data_dir", "cannot be resolved: it refers to itself"),
        ("data_dir=x/${nope}/y", "data_dir", "no key 'nope'"),
        ("seed=${oc.env:NOT_SET}", "seed",
         "the variable NOT_SET is not set; set it, or give a default: ${oc.env:NOT_SET,<default>}"),
        ("loader.num_workers=${loader}", "loader.num_workers", "it refers to itself"),
        ("data_dir=${loader.num_worker}", "data_dir", "did you mean ${loader.num_workers}?"),
        ("data_dir=${hydra:run.dir}", "data_dir", "cannot be used"),
        ("optimizer.lr=abc", "optimizer.lr", "accepts a number"),
        ("optimizer.lrr=1", "optimizer.lrr", "type optimizer.lr=1"),
        ("optimizer.params=[1]", "optimizer.params", "known at run time"),
        ("augment.train.crop.scale=0.5", "augment.train.crop.scale", "=[0.5,0.5]"),
        ("augment.train.crop.scael=[0,1]", "augment.train.crop.scael", "crop.scale=[0,1]"),
        ("augment.image_sise=3", "augment.image_sise", "accepts train, eval, device"),
        ("augment.train.flip._after_=corp", "augment.train.flip._after_", "_after_=crop"),
        ("~augment.train.flp", "augment.train.flp", "type ~augment.train.flip"),
        ("~nothing", "nothing", "nothing of this name"),
        ("task=null", "task", "type task=<option>"),
        ("dataset/annotations=landmarks_xml", "dataset/annotations",
         "type dataset/annotations=coco"),
        ("dataset/annotations=voc_keypoints", "dataset/annotations",
         "type dataset/annotations=coco"),
        ("sampler=random,weighted", "sampler", "add -m"),
        ("seed", "seed", "no value given"),
        ("data.batch_size=8", "data.batch_size", "type loader.batch_size=8"),
        ("data.shuffle=true", "data.shuffle", "type sampler=random or"),
        ("loaders.num_workers=2", "loaders.num_workers", "type loader.num_workers=2"),
        ("optimzer.lr=0.1", "optimzer.lr", "type optimizer.lr=0.1"),
        ("dataset=torch", "dataset.target", "missing"),
        ("experiment=imagenet", "dataset.storage.path", "not found"),
        ("dataset.storage.path=/no/such", "dataset.storage.path", "not found"),
        ("dataset/decode=null", "dataset.decode", "missing"),
        ("imports=nope.py", "imports", "type imports=[nope.py]"),
        ("imports=[nope.py]", "imports", "no file"),
        ("imports=[no_such_module]", "imports", "no module named"),
        ("trainer.resume=/no/such", "trainer.resume", "and no run of this name that has a"),
        ("=3", "=3", "no key given"),
        ("augment.train={}", "augment.train", "type augment.train=null"),
        ("dataset.val_fraction=2", "dataset.val_fraction", "<= 1"),
        ("dataset.decode.max_pixels=0", "dataset.decode.max_pixels", ">= 1"),
        ("model._target_=torch.nn.Flatten", "model._target_",
         "type model=module model.module._target_=torch.nn.Flatten"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_type(override: str, key: str, said: str):
    found = lines(override)
    assert list(found) == [key]
    assert said in found[key]
    assert "\n" not in found[key]


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        ("csv", "type dataset.storage.label_column=kind"),
        ("memmap", "leave dataset.storage.labels away"),
    ],
)
def test_labels_are_called_as_the_storage_calls_them(dataset, remedy):
    found = lines(f"dataset={dataset}", "dataset.storage.path=.", "dataset.storage.labels=kind")
    assert list(found) == ["dataset.storage.labels"]
    assert found["dataset.storage.labels"].endswith(remedy)


def test_what_watches_a_validation_that_there_is_not_is_said_in_a_line():
    found = lines("callback=early_stopping", "trainer.validate_every=0")
    assert [*found] == ["callback.early_stopping"]
    said = "type trainer.validate_every=1, or callback.early_stopping=null"
    assert said in found["callback.early_stopping"]
    for remedy in ("trainer.validate_every=1", "callback.early_stopping=null"):
        compose(["callback=early_stopping", "trainer.validate_every=0", remedy])
    compose(["callback=ema", "trainer.validate_every=0"])


@pytest.mark.parametrize(
    "overrides, key, said",
    [
        (["scheduler=plateau", "trainer.scheduler_interval=step"], "trainer.scheduler_interval",
         "type trainer.scheduler_interval=epoch"),
        (["scheduler=plateau", "trainer.monitor=loss", "scheduler.mode=max"], "scheduler.mode",
         "type trainer.monitor_mode=max"),
    ],
)  # fmt: skip
def test_a_schedule_that_contradicts_the_trainer_is_said_in_a_line(overrides, key, said):
    found = lines(*overrides)
    assert list(found) == [key]
    assert said in found[key]


@pytest.mark.parametrize(
    "overrides, key, said",
    [
        (["dataset/cache=ram", "dataset.cache.max_bytes=2XB"], "dataset.cache.max_bytes",
         "such as 4GB or 500MB, or a share"),
        (["dataset/cache=ram", "dataset.cache.what=pixels"], "dataset.cache.what", "decoded"),
        (["dataset/cache=disk", "dataset.cache.max_bytes=40%"], "dataset.cache.max_bytes",
         "dataset.cache.max_bytes=4GB"),
        (["dataset/cache=disk", "dataset.cache.policy=lru"], "dataset.cache.policy", ""),
        (["dataset=eager", "dataset/cache=ram"], "dataset/cache", "type dataset/cache=none"),
        (["dataset/cache=rom"], "dataset/cache", "disk, none, ram"),
    ],
)  # fmt: skip
def test_a_cache_that_cannot_be_is_said_in_a_line(overrides, key, said):
    found = lines(*overrides)
    assert list(found) == [key]
    assert said in found[key]


def test_settings_check_themselves():
    assert ">= 1" in lines("trainer.max_epochs=0")["trainer.max_epochs"]
    assert "give one" in lines("trainer.max_epochs=null")[""]


def test_all_mistakes_come_at_once():
    found = lines(
        "sampler=wieghted", "optimzer=adam", "loader.workers=3", "optimizer.lr=abc",
        "data_dir=${nope}", "seed=-1", "trainer.max_epochs=1,2", "hydra.job.chdir=true",
    )  # fmt: skip
    assert list(found) == [
        "sampler", "optimzer", "trainer.max_epochs", "hydra.job.chdir", "data_dir", "seed",
        "loader.workers", "optimizer.lr",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("augment.device", ""),
        ("augment.image_size", ""),
        ("dataset.sources.photos.weight", "dataset=mix dataset.sources.photos.dataset=lmdb"),
        ("loader.batch_size", ""),
        ("loader.bach_size", ""),
        ("loader.prefetch_factor", ""),
        ("loader.processes", ""),
        ("optimizer.lr", ""),
        ("optimizer.params", ""),
        ("sampler._target_", ""),
        ("sampler.identities", "sampler=identity"),
        ("sampler.images_per_identity", "sampler=identity"),
        ("seed", "dataset=mix dataset.sources.a.dataset=lmdb"),
        ("trainer.max_epochs", ""),
        ("trainer.timeout_s", ""),
    ],
)
def test_what_cannot_be_resolved_is_one_line_wherever_it_stands(key, others):
    found = lines(*others.split(), f"{key}=${{not.there}}")
    assert list(found) == [key]
    assert "no key 'not.there'" in found[key]


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("loader", "default, inline, processes, ray, threads, torch"),
        ("trainer", "default"),
        ("optimizer", "adam, adamw, sgd"),
    ],
)
def test_a_group_without_a_choice_is_told_its_own_options(group, options):
    found = lines(f"{group}=null")
    assert list(found) == [group]
    assert f"type {group}=<option> (options: {options})" in found[group]
    assert "sequence" in lines("task=null")["task"] and "table" in lines("task=null")["task"]


def test_steps_that_wait_for_one_another_are_told_so_once():
    afters = {"flip": "crop", "crop": "flip"}
    found = lines(*(f"augment.train.{name}._after_={after}" for name, after in afters.items()))
    assert list(found) == ["augment.train.crop._after_"]
    assert "the steps crop, flip wait for one another" in found["augment.train.crop._after_"]
    assert "no step named" in lines("augment.train.flip._after_=flip")["augment.train.flip._after_"]


@pytest.mark.parametrize("name", ["num_workers", "processes", "prefetch_factor"])
def test_sizes_of_the_loader_that_no_machine_has_are_refused(name):
    assert "<= 1024" in lines(f"loader.{name}=1025")[f"loader.{name}"]
    with pytest.raises(ValueError, match=f"loader.{name} is 1025: input should be less than or"):
        LoaderSettings(**{name: 1025})
    LoaderSettings(**{"num_workers": 1024, name: 1024})


def test_references_to_each_other_are_told_so():
    found = lines("seed=${loader.batch_size}", "loader.batch_size=${seed}")
    assert sorted(found) == ["loader.batch_size", "seed"]
    assert all("it refers to itself" in said for said in found.values())


def test_rules_leave_alone_what_has_been_reported():
    assert list(lines("dataset=mix", "dataset.sources.a.dataset=lmdb", "seed=1,2")) == ["seed"]
    for key in ("sampler.identities", "sampler.images_per_identity"):
        assert list(lines("sampler=identity", f"{key}=many")) == [key]


def test_what_is_below_a_wrong_option_is_not_reported_too():
    assert list(lines("sampler=wieghted", "sampler.weights=x", "sampler.foo=1")) == ["sampler"]
    assert list(lines("dataset/storage=ldmb", "dataset.storage.pth=x")) == ["dataset/storage"]
    assert list(lines("experiment=no", "sampler.weights=x")) == ["experiment"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer._target_=os.system", "neither registered nor on the allow-list"),
        ("optimizer._target_=torch.nn.Linear", "is a module, accepts a optimizer"),
        ("optimizer._target_=torch.optim.Adm", "did you mean torch.optim.Adam?"),
        ("sampler._target_=sampler/wieghted", "did you mean sampler/weighted?"),
        ("sampler._target_=task/classification", "is a task, accepts a sampler"),
        ("optimizer._target_=torch.optim.Optimizer", "has no optimizer of this name"),
        ("scheduler._target_=torch.optim.lr_scheduler.warnings.warn", "expected a class"),
        ("augment.train.flip._target_=albumentations.Compse", "albumentations"),
        ("loader._target_=settings/trainer", "accepts settings/loader alone"),
    ],
)
def test_a_target_that_may_not_be_named_is_refused(override: str, said: str):
    key = override.split("=")[0]
    assert said in lines(override)[key]


def test_batches_of_classes_that_cannot_be_made():
    bad = {
        "sampler=identity": {},
        "sampler=identity loader.batch_size=30": {"loader.batch_size": "type loader.batch_size=28"},
        "sampler=identity sampler.identities=5": {"loader.batch_size": "type loader.batch_size=20"},
        "sampler=identity dataset.storage.labels=null": {
            "sampler.column": "type dataset.storage.labels=folder, or sampler.column=identity"
        },
        "sampler=balanced_batch dataset.storage.labels=null": {"sampler.column": "has no labels"},
        "sampler=identity dataset=stream": {"sampler": "type sampler=sequential"},
        "task=identity dataset=stream": {"sampler": "type sampler=sequential"},
        "sampler=identity sampler.short=dorp": {"sampler.short": "drop"},
        "sampler=identity sampler.batch_size=8": {"sampler.batch_size": "known at run time"},
    }
    for overrides, expected in bad.items():
        if not expected:
            compose([*overrides.split()])
            continue
        found = lines(*overrides.split())
        assert found.keys() == expected.keys(), overrides
        assert all(said in found[key] for key, said in expected.items()), found


def test_a_torch_dataset_is_looked_at_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "checked_sets.py").write_text(
        "from torch.utils.data import Dataset, IterableDataset\n"
        "class Map(Dataset):\n    def __init__(self, n): ...\n"
        "class Stream(IterableDataset):\n    ...\n"
        "class Other: ...\n"
    )
    torch = "dataset=torch"
    assert "no module" in lines(torch, "dataset.target=checked_set.Map")["dataset.target"]
    assert "no subclass" in lines(torch, "dataset.target=checked_sets.Other")["dataset.target"]
    assert "missing" in lines(torch, "dataset.target=checked_sets.Map")["dataset.args"]
    stream = (torch, "dataset.target=checked_sets.Stream")
    config = compose([*stream])
    assert config["sampler"]["_target_"] == "sampler/sequential"
    assert config["scheduler"]["_target_"] == "scheduler/none"
    assert "cosine" in compose([*stream, "trainer.max_steps=9"])["scheduler"]["_target_"]
    assert "StepLR" in compose([*stream, "scheduler=step"])["scheduler"]["_target_"]
    for typed in ("sampler=random", "sampler=weighted"):
        assert "type sampler=sequential" in lines(*stream, typed)["sampler"]
    assert compose([*stream, "sampler=sequential"]) == config


def test_errors_pickle():
    import pickle

    with pytest.raises(ConfigError) as caught:
        compose(["lr=1"])
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_injected_arguments_of_a_component_cannot_be_configured(monkeypatch):
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    @registry.register("sampler", "fake_injected")
    class Fake:
        """Fake."""

        def __init__(self, n: int, seed: int, *, width: int): ...

    found = lines("sampler=fake_injected", "sampler.n=3", "sampler.sed=3")
    assert "known at run time" in found["sampler.n"]
    assert "unknown key" in found["sampler.sed"]
    assert "missing" in found["sampler.width"]


def test_emptied_stacks_leave_the_variables_of_their_file_alone():
    config = compose(["augment=none", "augment.train=null", "augment.eval=null"])
    assert not config["augment"]["train"] and not config["augment"]["eval"]
    assert compose(["augment=none", "~augment.train.resize"])["augment"]["eval"]["resize"]
    assert "unknown key" in lines("augment.image_sise=3")["augment.image_sise"]


def test_braces_for_a_text_are_to_be_quoted():
    found = lines("dataset=lmdb", "dataset.storage.key_format={}")["dataset.storage.key_format"]
    assert """for the text type "dataset.storage.key_format='{}'\"""" in found


@pytest.mark.parametrize(
    ("typed", "advised"),
    [
        ("dataset.storage.path=photo", "dataset.storage.path=photos"),
        ("dataset.storage.path=Photos/ct", "dataset.storage.path=photos/cat"),
        ("dataset.storage.path=photos/cats/../cat", "dataset.storage.path=photos/cat/../cat"),
        ("dataset.val_path=my_fotos", "'dataset.val_path=my fotos'"),
        ("dataset.storage.path=/no/such", "dataset.storage.path=<folder or file>, or demo"),
        ("dataset=lmdb dataset.storage.path=pakt.lmdb", "dataset.storage.path=packed.lmdb"),
        ("dataset=stream dataset.source.path=photo", "dataset.source.path=photos"),
    ],
)
def test_a_path_beside_one_of_nearly_its_name_is_answered_with_that(
    tmp_path, monkeypatch, typed, advised
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "my fotos").mkdir()
    for name in ("photo.txt", "packed.lmdb"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as error:
        compose(typed.split(" "))
    [problem] = error.value.problems
    assert f"; type {advised}" in problem.message
    if "<" not in advised:
        compose([*typed.split(" ")[:-1], *shlex.split(advised)])


def test_a_base_class_is_refused_alike_whether_its_library_was_looked_at_or_not(tmp_path):
    ask = "print(signature_of('torch.optim.Optimizer'))"
    code = f"from penstock.pipeline.config.signatures import signature_of\n{ask}\n{ask}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        said = "'torch.optim.Optimizer': torch.optim has no optimizer of this name\n"
        assert done.stdout == 2 * said, done.stderr
