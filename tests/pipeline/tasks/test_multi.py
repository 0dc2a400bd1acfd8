"""Several tasks at once: routed outputs, prefixed figures, weights, and a model with heads."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from penstock.pipeline.build import build_device_transforms, build_loader
from penstock.pipeline.commands import main
from penstock.pipeline.config.compose import compose
from penstock.pipeline.learning.building import build_model, build_task
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.models.reference import multi_net
from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.tasks.multi import Multi
from penstock.pipeline.training.job import train

SMALL = ["task=multi", "loader=inline", "loader.batch_size=4"]


def both(**arguments) -> Multi:
    tasks = {"kind": Classification(num_classes=2), "size": Classification(num_classes=3)}
    return Multi(tasks=tasks, **arguments)


BATCH = {"label": torch.tensor([0, 1]), "valid": torch.tensor([True, True]), "key": ["a", "b"]}


def test_outputs_are_routed_and_losses_weighed_by_name():
    outputs = {"kind": torch.tensor([[9.0, 0], [9, 0]]), "size": torch.zeros(2, 3)}
    losses = both(weights={"size": 0.5}).losses(outputs, BATCH)
    assert list(losses) == ["kind_cross_entropy", "size_cross_entropy"]
    assert losses["kind_cross_entropy"].item() == pytest.approx(4.5, abs=1e-3)
    assert losses["size_cross_entropy"].item() == pytest.approx(0.5 * torch.tensor(3.0).log())
    task = both()
    metrics = task.metrics()
    task.update(metrics, outputs, BATCH)
    assert metrics.compute()["kind_accuracy"] == 0.5
    assert set(metrics.compute()) == {"kind_accuracy", "size_accuracy"}
    metrics.reset()
    assert not metrics["kind"]["accuracy"].update_called


def test_what_cannot_be_routed_is_said():
    with pytest.raises(ValueError, match="the model gave kind; expected a dict"):
        both().losses({"kind": torch.zeros(2, 2)}, BATCH)
    with pytest.raises(ValueError, match=r"task.weights: no task 'sise'; tasks: kind, size"):
        both(weights={"sise": 1})
    with pytest.raises(ValueError, match="a task is named 'loss_a'"):
        Multi(tasks={"loss_a": Classification(num_classes=2)})
    with pytest.raises(ValueError, match="no tasks"):
        Multi(tasks={})
    with pytest.raises(ValueError, match="about 'tokens', and there are heads for label"):
        multi_net(task_fields={"a": ("tokens", 3)})
    with pytest.raises(ValueError, match="the data has no classes"):
        multi_net(task_fields={"a": ("mask", 0)})
    with pytest.raises(ValueError, match="type task=multi"):
        multi_net(task_fields={})


@pytest.fixture(scope="module")
def made(data_dir: Path):
    config = compose([*SMALL, f"data_dir={data_dir}", "dataset/annotations=coco"])
    with build_loader(config) as loader:
        batch = next(iter(loader))
        known = {"classes_of": loader.classes_of}
    for transform in build_device_transforms(config, "train"):
        batch = transform(batch)
    torch.manual_seed(0)
    return build_model(config, 6, **known), build_task(config, 6, None, **known), batch


def test_every_task_knows_its_own_classes(made):
    _, task, _ = made
    assert task.tasks["points"].class_names == ("centre", "top", "right", "bottom", "left")
    assert task.tasks["label"].num_classes == task.tasks["boxes"].num_classes == 6


def test_a_step_moves_every_head_and_padding_none(made):
    model, task, batch = made
    total_loss(task, model(batch), batch).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(any(p.grad.any() for p in head.parameters()) for head in model.heads)
    model.zero_grad()
    nothing = {**batch, "valid": torch.zeros_like(batch["valid"])}
    loss = total_loss(task, model(nothing), nothing)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_a_mask_has_a_head_too():
    model = multi_net(task_fields={"pixels": ("mask", 4), "label": ("label", 2)}, width=8)
    outputs = model({"image": torch.rand(2, 3, 40, 56)})
    assert outputs["pixels"].shape == (2, 4, 40, 56) and outputs["label"].shape == (2, 2)


def test_an_outputs_of_a_row_do_not_depend_on_its_batch(made):
    model, _, batch = made
    with torch.no_grad():
        whole = model.eval()(batch)
        alone = model({"image": batch["image"][:1]})
    assert torch.allclose(whole["points"]["keypoints"][:1], alone["points"]["keypoints"], atol=1e-3)
    assert torch.allclose(whole["boxes"]["logits"][:1], alone["boxes"]["logits"], atol=1e-4)


def test_all_of_it_trains_and_is_told_by_class(data_dir, tmp_path, capsys):
    results = train(compose([
        *SMALL, f"data_dir={data_dir}", f"outputs={tmp_path}", "trainer.max_epochs=1",
        "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "trainer.progress=off",
        "task.weights.boxes=0.5", "task.tasks.boxes.class_metrics=true",
    ]))  # fmt: skip
    names = {"label_accuracy", "boxes_map", "boxes_map_class_circle", "points_pck", "loss"}
    assert {f"val/{name}" for name in names} <= set(results)
    output = tmp_path / "figures.json"
    given = [f"checkpoint={results['run_dir']}", f"output={output}", "trainer.progress=off"]
    assert main(["evaluate", *given]) == 0
    found = json.loads(output.read_text())
    assert {"label_accuracy", "boxes_map"} <= set(found["metrics"])
    assert list(found["classes"]) == ["label", "boxes"]
    assert set(found["classes"]["label"]["circle"]) == {"precision", "recall", "f1", "count"}
    of_boxes = {"average_precision", "precision", "recall", "f1", "count"}
    assert set(found["classes"]["boxes"]["circle"]) == of_boxes
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[:1] in (["label"], ["boxes"]) for line in lines) == 2
    with open(tmp_path / "figures_label_confusion.csv", newline="") as file:
        assert next(csv.reader(file))[1:] == list(found["classes"]["label"])
    with open(tmp_path / "figures_boxes_confusion.csv", newline="") as file:
        assert next(csv.reader(file))[1:] == [*found["classes"]["boxes"], "background"]
    assert not (tmp_path / "figures_confusion.csv").exists()
    Path(tmp_path / "figures.json").unlink()
    assert main(["evaluate", *given]) == 2
    assert "figures_label_confusion.csv exists" in capsys.readouterr().err


def test_what_two_tasks_would_call_the_same_is_said():
    task = Multi(tasks={"a": both(), "a_kind": Classification(num_classes=2)})
    outputs = {"kind": torch.zeros(2, 2), "size": torch.zeros(2, 3)}
    said = "two of its tasks tell 'a_kind_cross_entropy'; call one otherwise"
    with pytest.raises(ValueError, match=said):
        task.losses({"a": outputs, "a_kind": torch.zeros(2, 2)}, BATCH)


def test_a_task_is_taken_away_by_null(data_dir, tmp_path):
    config = compose([*SMALL, f"data_dir={data_dir}", "task.tasks.boxes=null"])
    with build_loader(config) as loader:
        task = build_task(config, 6, None, classes_of=loader.classes_of)
        model = build_model(config, 6, classes_of=loader.classes_of)
    assert list(task.tasks) == list(model.fields) == ["label", "points"]
