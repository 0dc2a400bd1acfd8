"""The allow-list: a config from a stranger can call nothing but components."""

from __future__ import annotations

import pytest

from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.libraries import resolve_class, resolve_function, resolve_target
from penstock.pipeline.config.signatures import signature_of


@pytest.mark.parametrize(
    "target",
    [
        "torch.optim.AdamW", "torch.optim.adamw.AdamW", "torch.optim.lr_scheduler.OneCycleLR",
        "torch.nn.Linear", "torch.nn.modules.conv.Conv2d", "albumentations.HorizontalFlip",
        "albumentations.OneOf", "torch.utils.data.RandomSampler",
    ],
)  # fmt: skip
def test_components_of_the_libraries_resolve(target: str):
    assert resolve_target(target).__name__ == target.rpartition(".")[2]


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "subprocess.Popen", "torch.load", "torch.hub.load",
        "torch.nn.functional.importlib.import_module", "torch.nn.modules.module.functools.partial",
        "torch.optim.lr_scheduler.warnings.warn", "torch.optim.Optimizer", "torch.nn.Module",
        "torch.nn.Parameter", "torch.nn.utils.clip_grad_norm_", "torch.utils.data.DataLoader",
        "albumentations.from_dict", "albumentations.load", "albumentations.core.composition.random",
        "albumentations.BasicTransform", "hydra.utils.instantiate", "sampler/none_such", "random",
        "torch.optim.lr_scheduler.Optimizer", "torch.nn..Linear", "torch.nn.Linear.__init__",
        "torch.optim.adamw.Adam.__class__", "torch.nn.modules.module.Module.__subclasses__",
    ],
)  # fmt: skip
def test_nothing_else_does(target: str):
    register_components()
    with pytest.raises(ValueError, match=r"\S"):
        resolve_target(target)


def test_registered_components_know_what_is_injected():
    register_components()
    sampler = signature_of("sampler/random")
    assert sampler.injected == {"n", "index", "seed", "batch_size", "mixed", "column_of",
                                "shards"}  # fmt: skip
    assert signature_of("collate/stack").injected == {"samples"}


def test_a_function_comes_from_a_named_module_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_set.py").write_text(
        "from os import system\nfrom shutil import rmtree\ndef collate(items):\n    return items\n"
    )
    assert resolve_function("user_set.collate", {"user_set"})([1]) == [1]
    for path, modules in (
        ("os.system", {"user_set"}),
        ("user_set.system", {"user_set"}),
        ("user_set.rmtree", {"user_set"}),
        ("user_set.nothing", {"user_set"}),
        ("user_set.collate", set()),
    ):
        with pytest.raises(ValueError, match=path.split(".")[1]):
            resolve_function(path, modules)


def test_a_class_must_descend_from_its_base():
    bases = ("torch.utils.data.Dataset",)
    assert resolve_class("torch.utils.data.TensorDataset", bases).__name__ == "TensorDataset"
    for path in ("os.PathLike", "json.dumps", "no_such.Thing", "Thing"):
        with pytest.raises(ValueError, match=r"\S"):
            resolve_class(path, bases)


def test_an_error_inside_of_the_users_module_is_not_hidden(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        resolve_class("needs_more.Set", ("torch.utils.data.Dataset",))
