"""A trained model for other programs: what is written computes the same, or is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from penstock.pipeline.commands import export, main
from penstock.pipeline.config.compose import compose
from penstock.pipeline.training.job import train


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, data_dir):
    outputs = tmp_path_factory.mktemp("exported")
    small = ["model.width=8", "loader=inline", "trainer.max_steps=1", "trainer.progress=off",
             "trainer.limit_val_batches=1", "scheduler.warmup=1", "optimizer.decay_norms=false",
    ]  # fmt: skip
    return Path(train(compose([*small, f"data_dir={data_dir}", f"outputs={outputs}"]))["run_dir"])


def test_a_state_dict_has_the_weights_of_the_run(run_dir, tmp_path, capsys):
    assert main(["export", str(run_dir), f"output={tmp_path / 'm.pt'}"]) == 0
    assert "its outputs are the model's, to the bit" in capsys.readouterr().out
    written = torch.load(tmp_path / "m.pt", weights_only=True)
    best = torch.load(run_dir / "checkpoints" / "best.pt", weights_only=True)["model"]
    assert written.keys() == best.keys() and torch.equal(written["head.bias"], best["head.bias"])
    before = (tmp_path / "m.pt").read_bytes()
    assert main(["export", str(run_dir), f"output={tmp_path / 'm.pt'}"]) != 0
    assert "m.pt exists; choose another path" in capsys.readouterr().err
    assert (tmp_path / "m.pt").read_bytes() == before
    assert main(["export", str(run_dir), f"output={tmp_path / 'm.tf'}"]) != 0
    assert "expected a file name that ends in .onnx or .safetensors" in capsys.readouterr().err


def test_what_computes_something_else_is_not_written():
    found, expected = {"a": torch.ones(2)}, {"a": torch.ones(2) + 1e-7}
    assert export._compare(found, found) == "its outputs are the model's, to the bit"
    assert "to 1e-07" in export._compare(found, expected)
    for other in (torch.ones(3), torch.zeros(2), torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match=r"^export: .*nothing is written$"):
            export._compare({"a": other}, expected)


@pytest.mark.ecosystem
def test_onnx_takes_batches_of_any_size(run_dir, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run_dir), f"output={tmp_path / 'm.onnx'}"]) == 0
    assert "its outputs are the model's" in capsys.readouterr().out
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    assert given.name == "image" and [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    for rows in (1, 5):
        [logits] = session.run(None, {"image": torch.zeros(rows, 3, 64, 64).numpy()})
        assert logits.shape == (rows, 6)


@pytest.mark.ecosystem
def test_safetensors_are_read_by_a_run_that_begins_with_them(run_dir, tmp_path):
    pytest.importorskip("safetensors")
    from penstock.pipeline.training.checkpoint import read_weights

    assert main(["export", str(run_dir), f"output={tmp_path / 'm.safetensors'}"]) == 0
    found = read_weights(str(tmp_path / "m.safetensors")).tensors
    assert torch.equal(found["head.bias"], read_weights(str(run_dir)).tensors["head.bias"])


@pytest.mark.ecosystem
def test_a_model_that_onnx_cannot_say_is_one_line(tmp_path):
    pytest.importorskip("onnxscript")

    class Branching(nn.Module):
        def forward(self, batch):
            return batch["x"] + (1 if batch["x"].sum() > 0 else 2)

    inputs = {"x": torch.ones(2, 3)}
    with pytest.raises(ValueError, match=r"^export: torch cannot write this model as ONNX: .+"):
        export._write_onnx(Branching(), inputs, {"output": inputs["x"]}, tmp_path / "a.onnx")
