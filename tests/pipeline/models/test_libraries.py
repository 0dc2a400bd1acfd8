"""Models out of libraries: each trains, is tried again from its run, and refuses what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import pytest
import torch

from penstock.pipeline.commands import main
from penstock.pipeline.config.composition import compose
from penstock.pipeline.training.job import train
from tests.photographs import scene

QUICK = ["loader=inline", "loader.batch_size=4", "trainer.progress=off", "trainer.num_threads=1",
         "trainer.max_steps=2", "trainer.max_epochs=1", "augment=none"]  # fmt: skip


@pytest.mark.parametrize("library", ["timm"])
def test_a_missing_library_is_a_line_that_names_the_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    said = rf"model {library}: the package {library} is missing \(the extra {library}\); run: pip"
    with pytest.raises(ValueError, match=said):
        compose([f"model={library}", "model.name=resnet18"])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("models") / "photographs"
    for number in range(12):
        folder = root / ("train" if number < 8 else "val") / ("cat", "owl")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), scene(64, 64, number))
    return root


def trained(tmp_path: Path, *overrides: str) -> Path:
    """Train two steps, and evaluate and predict with the run."""
    result = train(compose([*QUICK, f"outputs={tmp_path / 'outputs'}", *overrides]))
    run, told = Path(result["run_dir"]), tmp_path / "told.csv"
    asked = [f"predict.checkpoint={run}", f"predict.output={told}", "predict.overwrite=true"]
    assert main(["predict", *asked]) == 0
    assert len(told.read_text().splitlines()) > 1
    figures = tmp_path / "figures.json"
    asked = [f"evaluate.checkpoint={run}", f"evaluate.output={figures}", "evaluate.overwrite=true"]
    assert main(["evaluate", *asked]) == 0
    return run


def begun(run: Path) -> dict:
    content = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    return content["model"]


def normalized(config: dict) -> tuple:
    step = config["augment"]["device"]["normalize"]
    return step["mean"], step["std"]


@pytest.mark.ecosystem
class TestTimm:
    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip("timm")

    def test_it_trains_and_is_tried_again(self, photographs, tmp_path, library):
        place = f"dataset.storage.path={photographs}"
        file = tmp_path / "weights.pth"
        torch.save(library.create_model("test_vit", num_classes=5, img_size=64).state_dict(), file)
        chosen = [
            place, "model=timm", "model.name=test_vit", "model.args.img_size=64",
            f"model.weights={file}", "optimizer.lr=0", "optimizer.weight_decay=0",
        ]  # fmt: skip
        assert normalized(compose(chosen)) == ([0.5] * 3, [0.5] * 3)
        run = trained(tmp_path, *chosen)
        weights = begun(run)
        assert weights["module.head.weight"].shape == (2, 64)
        given = torch.load(file)
        assert torch.equal(
            weights["module.patch_embed.proj.weight"], given["patch_embed.proj.weight"]
        )
        file.unlink()  # the checkpoint has all of them
        assert (
            main(["predict", f"predict.checkpoint={run}", f"predict.output={tmp_path}/b.csv"]) == 0
        )

    def test_what_the_user_sets_stays(self):
        model = ["model=timm", "model.name=test_vit"]
        assert normalized(compose(model)) == (None, None)
        mean = "augment.device.normalize.mean=[0.1,0.2,0.3]"
        found = normalized(compose([*model, "model.pretrained=true", mean]))
        assert found == ([0.1, 0.2, 0.3], [0.5] * 3)

    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            (["model.name=resnet5"], r"model\.name: 'resnet5' is none of .* type model\.name=resn"),
            (["model.name=resnet18.none"], r"the weights of resnet18 in timm are resnet18\.\w+"),
            (
                ["model.name=resnet18", "model.weights=no.pth"],
                r"model\.weights: 'no\.pth' does not",
            ),
            (["model.name=test_vit", "model.pretrained=true", "model.weights=."], "one of them"),
        ],
    )
    def test_wrong_arguments_are_told_before_anything_is_made(self, typed, said):
        with pytest.raises(ValueError, match=said):
            compose(["model=timm", *typed])

    def test_what_does_not_fit_is_a_line(self, photographs, tmp_path, library):
        place = [f"dataset.storage.path={photographs}", f"outputs={tmp_path}", "model=timm"]
        with pytest.raises(
            ValueError, match=r"cannot take 'image' \[4, 3, 64, 64\].*image_size=224"
        ):
            small = "model.args={depth: 1, embed_dim: 24}"
            train(compose([*QUICK, *place, "model.name=vit_tiny_patch16_224", small]))
        torch.save(library.create_model("test_resnet").state_dict(), file := tmp_path / "other.pth")
        with pytest.raises(ValueError, match=r"other\.pth cannot be loaded: Error"):
            train(compose([*QUICK, *place, "model.name=test_vit", f"model.weights={file}"]))
        with pytest.raises(ValueError, match=r"model timm: test_vit cannot be loaded: .*img_siz"):
            train(compose([*QUICK, *place, "model.name=test_vit", "model.args.img_siz=64"]))
