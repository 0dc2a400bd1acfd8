"""Runs that begin with weights, and parameters that are not trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from penstock.pipeline.learning.parameters import freeze
from penstock.pipeline.learning.weights import Weights, take_weights
from penstock.pipeline.training import job, parts
from penstock.pipeline.training.checkpoint import read_weights
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import assert_equal_weights, checkpoint, weights


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, classes))


def taken(model, tensors):
    return take_weights(model, Weights("there.pt", tensors))


def test_a_head_of_other_classes_is_left_as_drawn_and_told(caplog):
    source, model = net(5), net(3)
    drawn = model[3].weight.clone()
    found = taken(model, {**source.state_dict(), "extra": torch.zeros(2)})
    assert torch.equal(model[0].weight, source[0].weight) and torch.equal(model[3].weight, drawn)
    assert found.kept == {"3.weight": "[5, 4] in it, [3, 4] here", "3.bias": "[5] in it, [3] here"}
    assert found.unused == ("extra",) and "1.running_var" in found.taken
    with caplog.at_level("INFO"):
        found.tell()
    assert "7 of 9 tensors are from there.pt; as drawn: 3.weight ([5, 4] in it" in caplog.text


@pytest.mark.parametrize(
    ("off", "on"), [("module.", ""), ("_orig_mod.module.", ""), ("", "0."), ("model.", "0.")]
)
def test_what_wraps_a_model_does_not_matter(off, on):
    source = net()
    model = nn.Sequential(net()) if on else net()
    found = taken(model, {f"{off}{name}": each for name, each in source.state_dict().items()})
    assert not found.kept and not found.unused
    assert_equal_weights(
        {f"{on}{n}": each for n, each in source.state_dict().items()}, model.state_dict()
    )


def test_weights_of_which_nothing_fits_are_refused():
    with pytest.raises(ValueError, match=r"nothing in there.pt fits.*in it there is weight \[5, 2"):
        taken(net(), nn.Linear(2, 5).state_dict())


def test_files_of_weights(tmp_path):
    plain = net().state_dict()
    for name, content, options in (
        ("plain", plain, {}), ("of_lightning", {"epoch": 3, "state_dict": plain}, {}),
        ("of_timm", {"model": plain, "optimizer": {}}, {}),
        ("old", plain, {"_use_new_zipfile_serialization": False}),
    ):  # fmt: skip
        torch.save(content, tmp_path / f"{name}.pt", **options)
        assert_equal_weights(read_weights(str(tmp_path / f"{name}.pt")).tensors, plain)
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("none.pt", r"holds no tensors by name \(epoch\)"), ("text.pt", "no file of weights that"),
        ("gone.pt", "gone.pt does not exist"), ("empty", "has no checkpoints"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"trainer.init_from: .*{said}"):
            read_weights(str(tmp_path / name))


@pytest.mark.ecosystem
def test_safetensors_are_read(tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    plain = net().state_dict()
    save_file(plain, tmp_path / "a.safetensors")
    assert_equal_weights(read_weights(str(tmp_path / "a.safetensors")).tensors, plain)
    (tmp_path / "b.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"b.safetensors is no whole .safetensors file"):
        read_weights(str(tmp_path / "b.safetensors"))


@pytest.mark.usefixtures("tiny_parts")
def test_a_run_begins_with_anothers_weights_once(tmp_path):
    first = Path(job.train(config_of(tmp_path / "a", {"max_epochs": 1}))["run_dir"])
    begun = {"max_epochs": 1, "init_from": str(first)}
    second = Path(job.train(config_of(tmp_path / "b", begun, lr=0.0))["run_dir"])
    assert_equal_weights(checkpoint(first, "best.pt")["model"], weights(second))
    record = json.loads((second / "init_from.json").read_text())
    assert record["from"].endswith("checkpoints/best.pt") and not record["kept"]
    straight = Path(job.train(config_of(tmp_path / "c", {**begun, "max_epochs": 2}))["run_dir"])
    half = Path(job.train(config_of(tmp_path / "d", begun))["run_dir"])
    shutil.rmtree(first)
    again = {**begun, "max_epochs": 2, "resume": str(half)}
    job.train(config_of(tmp_path / "d", again))
    assert checkpoint(straight)["state"]["step"] == checkpoint(half)["state"]["step"] == 12
    with pytest.raises(ValueError, match=r"trainer.init_from: .* does not exist"):
        job.train(config_of(tmp_path / "e", begun))
    assert not [*(tmp_path / "e").glob("*/*")]


def test_frozen_norms_keep_their_figures():
    model = nn.Sequential(net(), nn.BatchNorm1d(3, affine=False))
    still = freeze(model, ["0.0", "0.1"])
    assert still == (model[0][1],)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["0.3.weight", "0.3.bias"]
    assert freeze(nn.Sequential(net(), nn.BatchNorm1d(3, affine=False)), ["0.3"]) == ()
    with pytest.raises(ValueError, match="nothing is left to train"):
        freeze(net(), ["*"])
    with pytest.raises(ValueError, match=r"trainer.freeze: '9' matches no parameter"):
        freeze(net(), ["9"])


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        self.head = nn.Linear(64, 3)

    def forward(self, batch):
        return self.head(self.body(batch["image"]))


@pytest.mark.usefixtures("tiny_parts")
def test_a_frozen_module_stays_as_it_is_and_has_no_state(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "build_model", lambda config, num_classes, **known: Normed())
    monkeypatch.setattr(parts, "build_optimizer", lambda config, model: torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9))  # fmt: skip
    config = config_of(tmp_path, {"freeze": ["body"], "max_epochs": 2})
    run = Path(job.train(config)["run_dir"])
    content = checkpoint(run)
    assert content["trained"] == [["head.weight", "head.bias"]]
    assert len(content["optimizer"]["state"]) == 2
    assert content["model"]["body.1.running_var"].eq(1).all()
    assert content["model"]["body.1.num_batches_tracked"] == 0
    resumed = {"freeze": ["head"], "max_epochs": 3, "resume": str(run)}
    with pytest.raises(ValueError, match=r"body.0.bias is trained in this run alone; give"):
        job.train(config_of(tmp_path, resumed))
    job.train(config_of(tmp_path, {**resumed, "freeze": ["body"]}))
    assert torch.equal(weights(run)["body.0.weight"], content["model"]["body.0.weight"])
