"""Models out of libraries: each trains, is tried again from its run, and refuses what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from penstock.pipeline.commands import main
from penstock.pipeline.config.compose import compose
from penstock.pipeline.training.job import train
from tests.photographs import scene

QUICK = ["loader=inline", "loader.batch_size=4", "trainer.progress=off", "trainer.num_threads=1",
         "trainer.max_steps=2", "trainer.max_epochs=1", "augment=none"]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "package"),
    [
        ("timm", "timm"),
        ("torchvision", "torchvision"),
        ("smp", "segmentation-models-pytorch"),
        ("transformers", "transformers"),
    ],
)
def test_a_missing_library_is_a_line_that_names_the_extra(model, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    said = rf"model {model}: the package \w+ is missing \(the extra {model}\); run: pip install "
    with pytest.raises(ValueError, match=said + package):
        compose([f"model={model}", "model.name=x"])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("models") / "photographs"
    for number in range(12):
        folder = root / ("train" if number < 8 else "val") / ("cat", "owl")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), scene(64, 64, number))
    rows = [f"{number}.png,8,8,{30 + number},40,{'ab'[number % 2]}" for number in range(12)]
    (root / "boxes.csv").write_text("image,xmin,ymin,xmax,ymax,label\n" + "\n".join(rows))
    for split, numbers in (("train", range(8)), ("val", range(8, 12))):
        for number in numbers:
            mask = (scene(64, 64, number)[..., 0] > 128).astype(np.uint8)
            file = root / "masks" / split / ("cat", "owl")[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), mask)
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


DETECTION = ["task=detection", "augment=none", "dataset/annotations=boxes_csv",
             "dataset.annotations.path=boxes.csv"]  # fmt: skip
SEGMENTATION = ["task=segmentation", "augment=none", "dataset.annotations.classes=[dark,light]"]
SMALL_BOXES = "model.args={min_size: 64, max_size: 64}"


@pytest.mark.ecosystem
class TestTorchvision:
    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip("torchvision")

    def test_a_classifier_begins_with_a_file_of_other_classes(self, photographs, tmp_path, library):
        file = tmp_path / "weights.pth"
        model = library.models.get_model("shufflenet_v2_x0_5", num_classes=7)
        torch.save({"state_dict": model.state_dict()}, file)
        run = trained(
            tmp_path, f"dataset.storage.path={photographs}", "model=torchvision",
            "model.name=shufflenet_v2_x0_5", f"model.weights={file}", "optimizer.lr=0",
            "optimizer.weight_decay=0",
        )  # fmt: skip
        weights = begun(run)
        assert torch.equal(weights["module.conv1.0.weight"], model.conv1[0].weight)
        assert weights["module.fc.weight"].shape[0] == 2
        other = ["model=torchvision", "model.name=resnet18", f"model.weights={file}"]
        with pytest.raises(ValueError, match=r"0 of the model's 122 weights fit; conv1\.weight is"):
            train(compose([*QUICK, f"dataset.storage.path={photographs}", *other]))

    def test_a_detector_trains_by_its_own_losses(self, photographs, tmp_path):
        chosen = [
            *DETECTION,
            "model=torchvision",
            "model.name=fasterrcnn_mobilenet_v3_large_320_fpn",
        ]
        place = f"dataset.storage.path={photographs}"
        assert normalized(compose([*chosen, place])) == ([0.0] * 3, [1.0] * 3)
        trained(tmp_path, *chosen, place, SMALL_BOXES)

    @pytest.mark.parametrize("name", ["retinanet_resnet50_fpn", "fcos_resnet50_fpn",
                                      "ssdlite320_mobilenet_v3_large"])  # fmt: skip
    def test_detectors_leave_out_what_is_not_valid(self, name):
        from penstock.pipeline.models.torchvision.model import torchvision as make

        sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 64}
        model = make(num_classes=2, name=name, args=sizes).train()
        batch = {
            "image": [torch.rand(3, 64, 64), torch.full((3, 50, 64), torch.nan)],
            "boxes": [torch.tensor([[4.0, 4, 40, 40], [9, 9, 9, 20]]), torch.zeros(0, 4)],
            "box_labels": [torch.tensor([1, 0]), torch.zeros(0, dtype=torch.int64)],
            "valid": torch.tensor([True, False]), "key": ["a", "b"],
        }  # fmt: skip
        if name.startswith("ssd"):  # batch norm wants more than one
            batch["image"][1], batch["valid"] = torch.rand(3, 64, 64), torch.tensor([True, True])
        losses = model(batch)
        assert losses and all(n.startswith("loss_") and v.isfinite() for n, v in losses.items())
        none = model({**batch, "valid": torch.zeros(2, dtype=torch.bool)})
        none["loss"].backward()
        assert none["loss"] == 0 and not any(p.grad.any() for p in model.parameters())
        with torch.no_grad():
            found = model.eval()({"image": batch["image"][:1]})["detections"][0]
        assert set(found) == {"boxes", "scores", "labels"} and not (found["labels"] < 0).any()

    def test_a_segmenter_trains(self, photographs, tmp_path):
        chosen = [*SEGMENTATION, "model=torchvision", "model.name=lraspp_mobilenet_v3_large"]
        trained(tmp_path, *chosen, f"dataset.storage.path={photographs}")


@pytest.mark.ecosystem
def test_smp_trains_and_wants_sizes_that_it_can_halve(photographs, tmp_path):
    pytest.importorskip("segmentation_models_pytorch")
    chosen = [*SEGMENTATION, f"dataset.storage.path={photographs}", "model=smp",
              "model.encoder=tu-test_resnet"]  # fmt: skip
    trained(tmp_path, *chosen, "model.args={encoder_depth: 3, decoder_channels: [16, 8, 8]}")
    wide = ["model.name=linknet", "augment.image_size=60", f"outputs={tmp_path}"]
    with pytest.raises(ValueError, match=r"cannot take 'image' \[4, 3, 60, 60\].*multiples of 32"):
        train(compose([*QUICK, *chosen, *wide]))
    with pytest.raises(ValueError, match=r"model\.encoder: 'resnt34' is none of .*=resnet34"):
        compose(["model=smp", "model.encoder=resnt34"])


@pytest.mark.ecosystem
class TestTransformers:
    TINY = ("hidden_size: 16", "num_hidden_layers: 1", "num_attention_heads: 2",
            "intermediate_size: 16")  # fmt: skip

    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip("transformers")

    def test_images(self, photographs, tmp_path, library):
        config = library.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            image_size=64, num_labels=5,
        )  # fmt: skip
        folder = tmp_path / "published"
        library.ViTForImageClassification(config).save_pretrained(folder)
        library.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
        chosen = [
            f"dataset.storage.path={photographs}", "model=transformers", f"model.name={folder}",
            "model.pretrained=true",
        ]  # fmt: skip
        assert normalized(compose(chosen)) == ([0.5] * 3, [0.5] * 3)
        run = trained(tmp_path, *chosen)
        assert begun(run)["module.classifier.weight"].shape == (2, 16)

    def test_tokens(self, data_dir, tmp_path):
        tiny = ", ".join((*self.TINY, "vocab_size: 300", "max_position_embeddings: 256"))
        chosen = ["task=sequence", "model=transformers", "model.name=bert",
                  f"model.args={{{tiny}}}", f"data_dir={data_dir}"]  # fmt: skip
        trained(tmp_path, *chosen, "trainer.limit_val_batches=2", "augment=sequence")

    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            (["model.name=vitt"], r"model\.name: 'vitt' is none of .* type model\.name=vit"),
            (["model.name=vit", "model.args={hiden: 1}"], r"'hiden' is no argument of ViTConfig"),
            (["model.name=vit", "model.pretrained=true"], "is a kind of model, which has no weigh"),
            (["model.name=whisper"], "classifies neither"),
        ],
    )
    def test_wrong_arguments_are_told_before_anything_is_made(self, typed, said):
        with pytest.raises(ValueError, match=said):
            compose(["model=transformers", *typed])
