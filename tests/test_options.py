"""Every option of every group composes, validates and builds, and gives a batch that trains."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from penstock.core import registry
from penstock.pipeline.build import (
    build_device_transforms,
    build_loader,
    build_loggers,
    build_settings,
)
from penstock.pipeline.config.compose import compose, prepare
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.options import groups, options_of
from penstock.pipeline.config.places import CHOSEN_BY
from penstock.pipeline.learning.building import (
    build_model,
    build_optimizer,
    build_scheduler,
    build_task,
)
from penstock.pipeline.learning.fields import task_field

ROOT = Path(__file__).resolve().parents[1]

# What an option cannot know by itself.
REQUIRED = {
    ("dataset", "torch"): ["dataset.target=tests.torch_datasets.Squares"],
    ("dataset", "mix"): ["dataset.sources.a.dataset=image_folder"],
    ("sampler", "mix"): ["dataset=mix", "dataset.sources.a.dataset=image_folder"],
    ("sampler", "torch"): ["sampler.target=torch.utils.data.RandomSampler"],
    ("augment", "device"): ["augment.image_size=32", "augment.stored_size=48"],
    ("batch_transform", "color_jitter"): ["augment.device.normalize._after_=color_jitter"],
    ("batch_transform", "grayscale"): ["augment.device.normalize._after_=grayscale"],
    ("batch_transform", "kornia"): [
        "augment.device.normalize._after_=kornia",
        "augment.device.kornia.augmentations.invert._target_=kornia.augmentation.RandomInvert",
    ],
    ("batch_transform", "random_resized_crop"): ["augment.device.random_resized_crop.size=32"],
    ("batch_transform", "to_float"): ["augment.device.normalize=null"],
    ("dataset/annotations", "boxes_csv"): ["task=detection"],
    ("dataset/annotations", "coco"): ["collate=list"],
    ("dataset/annotations", "coco_masks"): ["collate=list"],
    ("dataset/annotations", "demo_colours"): ["task=image_regression"],
    ("dataset/annotations", "in_records"): ["dataset.annotations.classes.label=6"],
    ("dataset/annotations", "labels_csv"): ["task=multilabel"],
    ("dataset/annotations", "values_csv"): [
        "task=image_regression",
        "dataset.annotations.path=annotations/{part}_colours.csv",
    ],
    ("dataset/annotations", "voc"): ["collate=list"],
    ("dataset/annotations", "yolo"): ["task=detection"],
    ("dataset/source", "jsonl"): ["dataset=stream"],
    ("dataset/source", "webdataset"): ["dataset=stream"],
    ("dataset/source", "sql"): ["dataset=stream", "dataset.source.url=env:DATABASE_URL"],
    ("dataset/source", "kafka"): ["dataset=stream", "dataset.source.topic=photos"],
    ("dataset/source", "rabbitmq"): [
        "dataset=stream",
        "dataset.source.queue=photos",
    ],
    ("dataset", "image_files"): ["dataset.storage.paths=[photo.jpg]"],
    ("dataset", "sql"): ["dataset.storage.url=env:DATABASE_URL"],
    ("dataset/storage", "sql"): ["dataset.storage.url=env:DATABASE_URL"],
    ("dataset/storage", "image_files"): ["dataset.storage.paths=[photo.jpg]"],
    ("dataset/storage", "memmap"): ["dataset/decode=raw"],
    ("dataset/storage", "npy_shards"): ["dataset/decode=raw"],
    ("dataset/storage", "pt_shards"): ["dataset/decode=raw"],
    ("augment", "as_is"): ["dataset=memmap"],
    ("augment", "small"): ["dataset=memmap"],
    ("model", "multi_net"): ["task=multi"],
    ("scheduler", "sequence"): ["scheduler.schedules.fall._target_=scheduler/cosine"],
    ("model", "table_net"): ["task=table"],
    ("augment", "detection"): ["dataset/annotations=coco", "collate=list"],
    ("transform", "copy_paste"): ["dataset/annotations=coco", "collate=list"],
    ("transform", "box_safe_crop"): ["augment.train.box_safe_crop.size=64"],
    ("transform", "center_crop"): ["augment.train.center_crop.size=64"],
    ("transform", "random_crop"): ["augment.train.random_crop.size=64"],
    ("transform", "random_resized_crop"): ["augment.train.random_resized_crop.size=64"],
    ("transform", "resize"): ["augment.train.resize.size=64"],
    ("transform", "mosaic"): ["augment.train.mosaic.height=64", "augment.train.mosaic.width=64"],
    ("augment", "mosaic"): ["dataset/annotations=coco", "collate=list"],
    ("augment", "segmentation"): ["dataset/annotations=mask_folder"],
    ("experiment", "camvid"): ["dataset.storage.path=demo"],
    ("augment", "keypoints"): ["dataset/annotations=coco", "collate=list"],
    ("sampler", "length_bucket"): ["sampler.column=label"],
    ("sampler", "token_budget"): ["sampler.column=label", "sampler.max_tokens=90"],
    ("augment", "audio"): ["task=audio"],
    ("augment", "tokens"): ["task=tokens"],
    ("collate", "packed"): ["task=tokens"],
    ("model", "token_model"): ["task=tokens"],
    ("sampler", "packed"): ["task=tokens"],
    ("transform", "audio_crop"): ["augment.train.audio_crop.seconds=1"],
    ("augment", "sequence"): ["task=sequence"],
    ("model", "sequence_cnn"): ["task=sequence"],
    ("transform", "token_crop"): [
        "task=sequence",
        "augment.train.token_crop.max_length=64",
    ],
    ("transform", "token_mask"): ["task=sequence"],
    ("model", "keypoint_net"): ["task=keypoints"],
    ("model", "segmenter"): ["task=segmentation"],
    ("model", "embedder"): ["task=identity"],
    ("task", "identity"): ["sampler.images_per_identity=2"],
    ("sampler", "balanced_batch"): ["sampler.classes=4"],
    ("dataset/annotations", "filename"): [
        r"dataset.annotations.pattern='(?P<shape>\w+)/(?P<number>\d+)'"
    ],
    ("experiment", "market1501"): ["dataset.storage.path=demo"],
    ("model", "box_detector"): ["task=detection"],
    ("model", "instance_net"): ["task=instances"],
    ("experiment", "bccd"): ["dataset.storage.path=demo"],
    ("transform", "array_crop"): ["augment.train.array_crop={size: [32, 32], fields: [image]}"],
    ("experiment", "imagenet"): ["dataset.storage.path=demo"],
    ("model", "module"): [
        "model.module={_target_: torch.nn.Conv2d, in_channels: 3, out_channels: 6, kernel_size: 3}"
    ],
}
# Options whose components cannot run on the demo set, and why.
NOT_BUILT = {
    ("model", "module"): "gives a map, which is no classifier's output",
    ("experiment", "bccd"): "has its own data",
    ("experiment", "camvid"): "has its own data",
    ("experiment", "market1501"): "has its own data",
    ("dataset", "image_files"): "has no labels",
    ("dataset", "sql"): "has its own data",
    ("dataset/source", "sql"): "has its own data",
    ("dataset/source", "kafka"): "has its own data",
    ("dataset/source", "rabbitmq"): "has its own data",
    ("dataset/storage", "sql"): "has its own data",
    ("experiment", "database"): "has its own data",
    ("experiment", "kafka"): "has its own data",
    ("dataset/storage", "image_files"): "has no labels",
    ("dataset/annotations", "voc"): "the demo set has no XML",
    ("dataset/annotations", "yolo"): "the demo set has no text files",
    ("dataset/decode", "array"): "is for what is no image",
    ("dataset/decode", "audio"): "is for what is no image",
    ("dataset", "audio_folder"): "has no images",
    ("task", "audio"): "has no images",
    ("augment", "audio"): "has no images",
    ("transform", "audio_crop"): "has no images",
    ("batch_transform", "log_mel"): "has no images",
    ("dataset/decode", "table"): "is for what is no image",
    ("model", "table_net"): "takes no images",
    ("task", "regression"): "has no images",
    ("task", "table"): "has no images",
    ("dataset/decode", "raw"): "leaves the bytes of an image as they are",
    ("logger", "mlflow"): "needs a package that wants an older pyarrow",
    ("logger", "wandb"): "needs a login",
}
# Models of libraries that are tried beside a torch of their own, and one of each.
ELSEWHERE = {
    ("model", "timm"): ["model.name=test_vit"],
    ("augment", "torchvision"): [],
    ("model", "torchvision"): ["model.name=resnet18"],
    ("model", "smp"): ["model.encoder=tu-test_resnet", "task=segmentation"],
    ("model", "transformers"): ["model.name=mobilevit"],
}
SMALL = ["loader=inline", "loader.batch_size=8"]


OF_COMMANDS = {group for chosen in CHOSEN_BY.values() for group in chosen.values()}


def _options() -> list[tuple[str, str]]:
    """Options that Penstock has; other tests of this process may have registered theirs."""
    prepare()
    found = {group: options_of(group) for group in groups()}
    registered = {
        (registry.GROUPS[component.group].option_group, component.name)
        for component in registry.components()
        if component.target.__module__.startswith("penstock.")
    }
    return [
        (group, option)
        for group, options in sorted(found.items())
        for option in options
        if group not in OF_COMMANDS
        if (group, option) in registered or (ROOT / "conf" / group / f"{option}.yaml").exists()
    ]


@pytest.mark.parametrize(("group", "option"), _options())
def test_an_option_composes_and_trains_a_step(group: str, option: str, data_dir: Path, tmp_path):
    if (group, option) in ELSEWHERE and not importlib.util.find_spec("timm"):
        with pytest.raises(ConfigError, match=r"the package \w+ is missing.*; run: pip install"):
            compose([f"{group}={option}", *ELSEWHERE[group, option]])
        return
    chosen = SMALL[1:] if group == "loader" else SMALL
    of_storage = group in ("dataset", "dataset/storage") and option not in ("image_files", "sql")
    if of_storage and not any((ROOT / "conf" / "dataset").rglob(f"{option}.yaml")):
        chosen = [*chosen, "dataset.storage.path=demo"]
    config = compose(
        [
            *chosen,
            f"{group}={option}",
            f"data_dir={data_dir}",
            *REQUIRED.get((group, option), []),
            *ELSEWHERE.get((group, option), []),
        ]
    )
    if (group, option) in NOT_BUILT:
        return
    build_settings(config["trainer"])
    build_loggers(config, tmp_path)
    with build_loader(config, "train", run_dir=tmp_path) as loader:
        batch = next(iter(loader))
        names = loader.classes_of(task_field(config))
    assert batch["valid"].all()
    content = batch["image" if "image" in batch else "tokens"]
    assert content.dtype == (torch.uint8 if "image" in batch else torch.int16)
    num_classes = len(names) if names else 2
    if "tokens_segments" not in batch:  # those lie in as many rows as it takes
        assert content.shape[:1] == batch["label"].shape == (8,)
    for transform in build_device_transforms(config, "train"):
        batch = transform(batch)
    known = {"table": loader.table, "classes_of": loader.classes_of}
    model = build_model(config, num_classes, **known)
    task = build_task(config, num_classes, names, **known)
    optimizer = build_optimizer(config, model)
    scheduler = build_scheduler(config, optimizer, total_steps=10)
    before = [p.detach().clone() for p in model.parameters()]
    losses = task.losses(model(batch), batch)
    torch.stack(list(losses.values())).sum().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step(*([0.5] if option == "plateau" else []))  # the metric that it looks at
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
