"""Components and classes that a config may name: registered, imported, or of a library."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys

import pytest

from penstock import compose
from penstock.core import registry
from penstock.pipeline.build import build_dataset
from penstock.pipeline.config import libraries
from penstock.pipeline.config.components import load_entry_points, load_imports, register_components
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.libraries import resolve_class, resolve_target
from penstock.pipeline.config.schema import check_libraries
from penstock.pipeline.training.job import train

FLIP = "albumentations.HorizontalFlip"
ADAM = {"_target_": "torch.optim.AdamW"}
ACCEPTED = """
torch.optim.AdamW torch.optim.adamw.AdamW torch.optim.lr_scheduler.OneCycleLR torch.nn.Linear
torch.nn.modules.conv.Conv2d albumentations.HorizontalFlip albumentations.OneOf
torch.utils.data.RandomSampler
""".split()
REFUSED = """
os.system builtins.eval subprocess.Popen torch.load torch.hub.load random sampler/none_such
torch.nn.functional.importlib.import_module torch.nn.modules.module.functools.partial
torch.optim.lr_scheduler.warnings.warn torch.optim.Optimizer torch.nn.Module torch.nn.Parameter
torch.nn.utils.clip_grad_norm_ torch.utils.data.DataLoader albumentations.from_dict
albumentations.load albumentations.core.composition.random albumentations.BasicTransform
hydra.utils.instantiate torch.optim.lr_scheduler.Optimizer torch.nn..Linear
torch.nn.Linear.__init__ torch.optim.adamw.Adam.__class__
torch.nn.modules.module.Module.__subclasses__
""".split()


@pytest.mark.parametrize("target", [*ACCEPTED, *REFUSED])
def test_classes_of_the_libraries_resolve_and_nothing_else(target: str):
    register_components()
    if target in ACCEPTED:
        assert resolve_target(target).__name__ == target.rpartition(".")[2]
    else:
        with pytest.raises(ValueError):
            resolve_target(target)


def test_classes_come_from_named_modules_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there\n")
    base = ["torch.utils.data.Dataset"]
    assert resolve_class("torch.utils.data.TensorDataset", base).__name__ == "TensorDataset"
    for path in ("os.PathLike", "json.dumps", "no_such.Thing", "Thing"):
        with pytest.raises(ValueError):
            resolve_class(path, base)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        resolve_class("needs_more.Set", base)


@pytest.mark.parametrize(
    "node",
    [
        {**ADAM, "lr": 1, "betas": [0.9, 0.99], "foreach": None, "weight_decay": 0},
        {"_target_": "torch.nn.Conv2d", "_args_": [3, 8, 3], "padding": "same"},
        {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.ReLU"}]},
        {"_target_": "torch.nn.Identity", "anything": 1},
        {"_target_": "albumentations.RandomCrop", "height": 8, "width": 8, "p": 1},
    ],
)
def test_accepted_arguments_are_no_mistake(node):
    assert check_libraries({"part": node}) == [] == check_libraries(compose(["optimizer=sgd"]))


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    [problem] = check_libraries({"k": {"_target_": "kornia.augmentation.RandomAffine"}})
    assert problem.key == "k._target_" and "pip install 'penstock[kornia]'" in problem.message


@pytest.mark.parametrize("use", [train, lambda config: build_dataset(config, "train")])
def test_a_config_is_checked_where_it_is_used(use, tmp_path):
    config = compose([f"outputs={tmp_path}/runs"])
    config["optimizer"] = {**ADAM, "lrr": 0.1}
    config["augment"]["train"] = {"flip": {"_target_": FLIP, "pp": 0.5}}
    with pytest.raises(ConfigError) as error:
        use(config)
    keys = {problem.key for problem in error.value.problems}
    assert keys == {"optimizer.lrr", "augment.train.flip.pp"}
    assert not (tmp_path / "runs").exists()


PART = """
from penstock import register
@register("sampler", "{name}")
class Sampler:
    def __init__(self, n: int, *, width: int = 3): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    register_components()  # once in a process: what a test takes back must not be of these
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "named", "name"), [("found_parts.py", "./found_parts.py", "found_parts"),
                                ("found/parts.py", "found.parts", "found__parts")]
)  # fmt: skip
def test_a_file_or_module_is_imported_so_that_it_pickles(file, named, name, folder):
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(PART.format(name=name))
    register_components([named])
    target = registry.find(f"sampler/{name}").target
    assert target.__module__ == name.replace("__", ".")
    assert pickle.loads(pickle.dumps(target)) is target


def test_an_imported_component_is_chosen_and_saved_with_its_import(folder):
    (folder / "chosen_parts.py").write_text(PART.format(name="chosen"))
    config = compose(["imports=[chosen_parts.py]", "sampler=chosen", "sampler.width=5"])
    assert config["sampler"] == {"_target_": "sampler/chosen", "width": 5}
    assert config["imports"] == ["chosen_parts.py"]
    (folder / "preset_parts.py").write_text(PART.format(name="by_preset"))
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /sampler: by_preset\n"
        "imports: [preset_parts.py]\n"
    )
    assert compose(["experiment=mine"])["sampler"]["_target_"] == "sampler/by_preset"


def test_an_entry_point_is_loaded(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "found_plugin.py").write_text(PART.format(name="by_entry_point"))
    point = importlib.metadata.EntryPoint("x", "found_plugin", "penstock.components")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    load_entry_points.__wrapped__()
    assert registry.find("sampler/by_entry_point")


@pytest.mark.parametrize("name", ["json", "pipeline", "numpy", "this", "b/twice", "odd-name"])
def test_a_file_that_cannot_be_told_from_another_module_is_refused(folder, name):
    for each in ("a/twice", name):
        (folder / f"{each}.py").parent.mkdir(exist_ok=True)
        (folder / f"{each}.py").write_text("raise SystemExit('imported')" if each == name else "")
    load_imports(["a/twice.py", "a/twice.py"])
    with pytest.raises(ConfigError) as caught:
        load_imports([f"{name}.py" if "/" in name else f"./{name}.py"])
    assert [problem.key for problem in caught.value.problems] == ["imports"]
    del sys.modules["twice"]


def test_a_failing_import_raises_what_it_raises(folder):
    (folder / "failing_parts.py").write_text("import nothing_of_this_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        load_imports(["failing_parts.py"])
