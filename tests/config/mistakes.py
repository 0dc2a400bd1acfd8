"""The configuration mistakes that Penstock reports: one table, as data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.pipeline.config.hints import FOREIGN_NAMES

COMPOSE, LIBRARIES = "compose", "libraries"


class Mistake(NamedTuple):
    """Overrides for `compose`, or for `fit` too (``libraries``), and the keys of their problems."""

    overrides: tuple[str, ...]
    keys: frozenset[str]
    kind: str
    beside: tuple[str, ...]  # overrides that a remedy needs too
    typed: str  # the remedies of the problem, joined by ``or``, or ``nothing``; empty for any


def m(*overrides: str, keys: str | None = None, kind: str = COMPOSE, beside: str = "",
      typed: str = "") -> Mistake:  # fmt: skip
    """Make an entry; `keys` defaults to the key of the last override."""
    if keys is None:
        keys = overrides[-1].lstrip("+~").partition("=")[0]
    found = frozenset(keys.split() or [""])
    return Mistake(overrides, found, kind, tuple(beside.split()), typed)


MIX = ("dataset=mix", "dataset.sources.photos.dataset=image_folder",
       "dataset.sources.photos.weight=3", "dataset.sources.packed.dataset=lmdb")  # fmt: skip
SEQUENCE = (
    "scheduler=sequence", "scheduler.schedules.up._target_=torch.optim.lr_scheduler.LinearLR",
    "scheduler.schedules.fall._target_=scheduler/cosine",
)  # fmt: skip
OWN = ("imports=[table_nets]", "model=module")
KORNIA = "augment.device.k={_target_: batch_transform/kornia, augmentations: {j: %s}}"
_VALUES = {"root": "demo", "data_dir": "demo", "accelerator": "cpu", "mode": "max", "opt": "adam",
           "ckpt_path": "auto", "default_root_dir": "x", "output_dir": "x", "report_to": "csv",
           "learning_rate": "0.1", "lr0": "0.1"}  # fmt: skip
K = "augment.device.normalize._after_=k"

# fmt: off
MISTAKES: dict[str, list[Mistake]] = {
    "device steps and empty paths": [
        m("batch_transform=color_jitter", keys="augment.device.color_jitter"),
        m("batch_transform=grayscale", keys="augment.device.grayscale"),
        m("data_dir=", "seed=1", keys="data_dir"), m("outputs=", "seed=1", keys="outputs"),
        m("dataset.storage.path=", "seed=1", keys="dataset.storage.path"),
        m("trainer.resume=", "seed=1", keys="trainer.resume"),
        m("batch_transform=grayscale", "augment.device.normalize._after_=greyscale"),
        m(K, KORNIA % "{_target_: kornia.augmentation.ColorJitter, brightnes: 0.3}",
          beside="augment.device.k._target_=batch_transform/kornia "
                 "augment.device.k.augmentations.j._target_=kornia.augmentation.ColorJitter",
          keys="augment.device.k.augmentations.j.brightnes", kind=LIBRARIES),
        m(K, KORNIA % "{_target_: kornia.augmentation.ColorJiter}",
          keys="augment.device.k.augmentations.j._target_", kind=LIBRARIES),
        m(K, KORNIA % "{_target_: kornia.io.load_image}",
          keys="augment.device.k.augmentations.j._target_", kind=LIBRARIES),
    ],
    "mixes of data sets": [
        m("dataset=image_folder", "sampler=mix"),
        m("dataset=mix", keys="dataset.sources"), m("augment=light", "augment.train.filp=null"),
        m("task=multi", "task.tasks.zebra=null"), m(*MIX, "dataset.sources.photos.dataset=mix"),
        m(*MIX, "sampler=weighted"), m(*MIX, "dataset.sources=null"),
        m(*MIX, "dataset.sources.photos=null", "dataset.sources.packed=null",
          keys="dataset.sources"),
        m(*MIX, "dataset.sources.photos.weight=0", "dataset.sources.packed.weight=0",
          keys="dataset.sources"),
        m(*MIX, "dataset.sources.photos.weight=-1", "dataset.sources.packed.weight=nan",
          "dataset.length=0",
          keys="dataset.sources.photos.weight dataset.sources.packed.weight dataset.length"),
        m(*MIX, "dataset.sources.photos.weight=inf", "dataset.sources.packed=zip",
          keys="dataset.sources.packed dataset.sources.photos.weight"),
        m(*MIX, "dataset.sources.photo.weight=2", "dataset.sources.pakced.dataset.storage.path=.",
          "dataset.sources.slides.weight=1", "dataset.sources.photos.wieght=2",
          "dataset.sources.packed.dataset=zipp", "dataset.sources.photos.sampler=wieghted",
          beside="dataset.sources.slides.dataset=zip",
          keys="dataset.sources.packed.dataset dataset.sources.photos.sampler "
               "dataset.sources.photos.wieght dataset.sources.photo dataset.sources.pakced "
               "dataset.sources.slides.dataset"),
        m(*MIX, "dataset.sources.photso=null", "dataset.sources.zebra=null",
          keys="dataset.sources.photso dataset.sources.zebra"),
        m(*MIX, "dataset.sources=[a,b]"), m(*MIX, "dataset.sources=zip"),
        m(*MIX, "dataset.storage.path=.", keys="dataset.storage"),
        m(*MIX, "dataset.sources.packed.dataset=stream", keys="dataset.sources.packed.dataset"),
        m(*MIX, "dataset.sources.photos.dataset=torch",
          "dataset.sources.photos.dataset.target=tests.laws.torch_components.PhotoStream",
          "dataset.sources.photos.dataset.args={root: .}", keys="dataset.sources.photos.dataset"),
        m(*MIX, "dataset.sources.photos.dataset.storage.path=nowhere",
          "dataset.sources.packed.dataset.cache=ram",
          "dataset.sources.packed.dataset.cache.max_bytes=x",
          keys="dataset.sources.photos.dataset.storage.path "
               "dataset.sources.packed.dataset.cache.max_bytes"),
    ],
    "names of other tools": [
        *(m(given, typed=typed) for given, typed in {
          "batch_size=32": "loader.batch_size=32", "image_size=32": "augment.image_size=32",
          "dataset.image_size=32": "augment.image_size=32",
          "dataset.path=demo": "dataset.storage.path=demo", "trainer.seed=3": "seed=3",
          "trainer.warmup=0.1": "scheduler.warmup=0.1", "device=cpu": "trainer.device=cpu",
          "device=0": "trainer.device=cuda:0", "amp=true": "trainer.amp=bf16",
          "cache=ram": "dataset/cache=ram", "task.class_weight=[1,2]": "task.class_weights=[1,2]",
          "image_folder": "dataset=image_folder", "csv": "dataset=csv or logger=csv",
          "EarlyStopping": "callback=early_stopping", "ema=true": "callback=ema",
          "mixup=0.2": "batch_transform=mixup",
          "callbacks=early_stopping": "callback=early_stopping", "optimizer=Adam": "optimizer=adam",
          "optim=adamw_torch": "optimizer=adamw", "logger=WandbLogger": "logger=wandb",
          "dataset=npy": "dataset=npy_shards",
          "dataset=coco": "dataset=image_folder dataset/annotations=coco",
          "sampler=WeightedRandomSampler": "sampler=weighted",
          "sampler=DistributedSampler": "sampler=random",
          "sampler=torch.utils.data.RandomSampler": "sampler=random",
          "sampler=SubsetRandomSampler":
              "sampler=torch sampler.target=torch.utils.data.SubsetRandomSampler",
          "scheduler=ReduceLROnPlateau": "scheduler=plateau",
          "trainer.resume=true": "trainer.resume=auto"}.items()),
        m("trainer.early_stopping.patience=3",
          typed="callback=early_stopping", keys="trainer.early_stopping"),
        m("callback.ema.decay=0.9", typed="callback=ema", keys="callback.ema"),
        m("scheduler=CosineAnnealingWarmRestarts",
          typed="scheduler=none "
                "scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
          beside="scheduler.T_0=5"),
        m("transform=albumentations.RandomCrop",
          typed="augment.train.my_step._target_=albumentations.RandomCrop",
          beside="augment.train.my_step.height=16 augment.train.my_step.width=16"),
        m("optimizer.llrd=0.3", kind=LIBRARIES, typed="~optimizer.llrd"),
        m("lrf=0.01", typed="nothing"), m("min_lr=0.1", typed="nothing"),
        m("hflip=0.5", typed="nothing"), m("dataset=kafka", beside="dataset.source.topic=photos"),
        m("experiment=bccd", "dataset=lmdb", "dataset/annotations=in_records",
          "dataset.storage.path=demo", keys="dataset.storage.labels"),
        m("experiment=bccd", "dataset=lmdb", "dataset/annotations=in_records",
          "dataset.storage.path=demo", "~dataset.storage.labels", "~dataset.storage.nothing"),
        m("augment.train.c._target_=albumentations.RandomCrop", "augment.train.c.size=16",
          keys="augment.train.c.size augment.train.c.height augment.train.c.width", kind=LIBRARIES),
        m("augment.train.c._target_=albumentations.RandomCrop", "augment.train.c.size=[16,16]",
          keys="augment.train.c.size augment.train.c.height augment.train.c.width", kind=LIBRARIES),
        m("task=detection", "image_size=16"), m("task=detection", "augment.image_size=16"),
        m("sampler=weighted", "sampler.weights={cat:", "1,", "dog:", "2}", keys="1, dog: 2}"),
    ],
    "modules of torch and of one's own": [
        m("model=module", "model.module._target_=table_nets.Net", "model.module.width=5",
          keys="model.module._target_"),
        m(*OWN, "model.module._target_=table_nets.Plain"),
        m(*OWN, "model.module._target_=table_nets.net"),
        m(*OWN, "model.module._target_=table_nets.os.system"),
        m(*OWN, "model.module._target_=table_nets.torch.load"),
        m(*OWN, "model.module._target_=table_nets.nothing"),
        m("imports=[table_nets]", "model._target_=table_nets.Net", beside="model.module.width=5"),
        m(*OWN, "model.module._target_=table_nets.Net", "model.module.width=5",
          "model.module.widht=5", kind=LIBRARIES),
        m("model=module", "model.module._target_=torch.nn.Sequential",
          "model.module._args_=[{_target_:torch.nn.Linear,in_featurs:2}]",
          keys="model.module._args_.0.in_featurs model.module._args_.0.in_features "
               "model.module._args_.0.out_features",
          kind=LIBRARIES),
    ],
    "options and groups": [
        m("transform=grainy"), m("sampler=wieghted"), m("optimiser=adam"), m("dataset/storge=lmdb"),
        m("dataset/storage/path=demo"), m("experiment=imagnet", beside="dataset.storage.path=demo"),
        m("debug=one_bach"), m("task=null"), m("dataset/cache=rom"),
        m("sampler=wieghted", "optimzer=adam", "loader.workers=3", "data_dir=${nope}", "seed=-1",
          "trainer.max_epochs=1,2", "hydra.job.chdir=true",
          keys="sampler optimzer trainer.max_epochs hydra.job.chdir data_dir seed "
               "loader.workers"),
        m("loader=null"), m("trainer=null"), m("optimizer=null"),
        m("sampler=wieghted", "sampler.weights=x", "sampler.foo=1", keys="sampler"),
        m("dataset/storage=ldmb", "dataset.storage.pth=x", keys="dataset/storage"),
        m("experiment=no", "sampler.weights=x", keys="experiment"),
    ],
    "data": [
        m("dataset.storage=lmdb"), m("dataset=torch", keys="dataset.target"),
        m("experiment=imagenet", keys="dataset.storage.path"), m("dataset.storage.path=/no/such"),
        m("dataset/decode=null", keys="dataset.decode"), m("dataset.val_fraction=2"),
        m("dataset.decode.max_pixels=0"),
        m("dataset=csv", "dataset.storage.path=.", "dataset.storage.labels=kind"),
        m("dataset=memmap", "dataset.storage.path=.", "dataset.storage.labels=kind"),
        m("dataset/cache=ram", "dataset.cache.max_bytes=2XB"),
        m("dataset/cache=ram", "dataset.cache.what=pixels"),
        m("dataset/cache=disk", "dataset.cache.max_bytes=40%"),
        m("dataset/cache=disk", "dataset.cache.policy=lru"),
        m("dataset=lmdb", "dataset.storage.key_format={}"),
        m("dataset.storage.path=photo"), m("dataset.storage.path=Photos/ct"),
        m("dataset.storage.path=photos/cats/../cat"), m("dataset.val_path=my_fotos"),
        m("dataset=lmdb", "dataset.storage.path=pakt.lmdb"),
        m("dataset=stream", "dataset.source.path=photo"),
    ],
    "loader": [
        m("loader.workers=3"), m("loader.num_worker=3"), m("+loader.num_worker=3"),
        m("++loader.num_worker=3"), m("loader.shuffle=true"),
        m("loader.batch_size=big", typed="loader.batch_size=64"), m("loader.batch_size=0"),
        m("loader.batch_size=64.0"), m("loader.batch_size=true"), m("loader.batch_size='64'"),
        m("loader.on_error=rais"), m("loader.drop_last=pads"),
        m("loader.max_error_rate=1.5"), m("loader.num_workers=1025"),
        m("loader.prefetch_factor=1025"),
    ],
    "trainer, optimizer and schedules": [
        m("trainer.epochs=3"), m("trainer.gpus=2"),
        m("trainer.max_epochs=None"), m("scheduler.warmup=-1"),
        m("scheduler.warmpu=3"), m("trainer.resume=/no/such"),
        m("scheduler=plateau", "trainer.scheduler_interval=step"),
        m("scheduler=plateau", "trainer.monitor=loss", "scheduler.mode=max"),
        m("trainer.max_epochs=0"),
        m("optimizer.groups.head.lr=1", keys="optimizer.groups.head.params", kind=LIBRARIES),
        m("optimizer.groups.a={params:[b],lrr:1}", keys="optimizer.groups.a.lrr",
          beside="optimizer.groups.a.params=[b]", kind=LIBRARIES),
        m("optimizer.groups.a={params:[b],lr:x}", keys="optimizer.groups.a.lr",
          beside="optimizer.groups.a.params=[b]", kind=LIBRARIES),
        m("optimizer.layer_decy=0.5", kind=LIBRARIES), m("optimizer.lr=abc", kind=LIBRARIES),
        m("optimizer.lrr=1", kind=LIBRARIES), m("optimizer.params=[1]", kind=LIBRARIES),
        m(*SEQUENCE, keys="scheduler.lengths.up"),
        m(*SEQUENCE, "scheduler.lengths.upp=3", keys="scheduler.lengths.up scheduler.lengths.upp"),
        m(*SEQUENCE, "scheduler.lengths={up:3,fall:4}", keys="scheduler.lengths.fall"),
        m(*SEQUENCE, "scheduler.lengths.up=3",
          "scheduler.schedules.fall={_target_:torch.optim.lr_scheduler.ReduceLROnPlateau}",
          kind=LIBRARIES),
    ],
    "top of the config": [
        m("lr=0.1"), m("batch_size=8"), m("hydra.run.dir=x"), m("hydra/launcher=joblib"),
        m("seed=-1"), m("data_dir=${hydra:run.dir}"), m("~nothing"), m("seed"),
        m("data.batch_size=8"), m("data.shuffle=true"), m("loaders.num_workers=2"),
        m("optimzer.lr=0.1"), m("=3", keys="=3"),
        m("callback=early_stopping", "trainer.validate_every=0", keys="callback.early_stopping"),
        m("trainer.max_epochs=null", keys=""),
        m("dataset=mix", "dataset.sources.a.dataset=lmdb", "seed=1,2"), m("lr=1"),
        m("data_dir=a,b"), m("run=x", typed="run.name=..."), m("run.name=7", typed='run.name="7"'),
        m("outputs=2024"), m("optimizer.betas=0.9,0.99"), m("logger=csv,tensorboard"),
    ],
    "models and tasks": [
        m("task.label_smoothing=2"), m("task.top_k=0"), m("model.width=20"),
        m("task=multi", "loader=inline", "loader.batch_size=4", "task.tasks.boxes.radios=2",
          "task.tasks.label._target_=model/small_cnn",
          keys="task.tasks.label._target_ task.tasks.boxes.radios"),
    ],
    "references": [
        m("data_dir=${nope}"), m("data_dir=${data_dir}"), m("data_dir=x/${nope}/y"),
        m("seed=${oc.env:NOT_SET}"), m("loader.num_workers=${loader}"),
        m("data_dir=${loader.num_worker}"), m("augment.device=${not.there}"),
        m("augment.image_size=${not.there}"),
        m("dataset=mix", "dataset.sources.photos.dataset=lmdb",
          "dataset.sources.photos.weight=${not.there}"),
        m("loader.batch_size=${not.there}"), m("loader.bach_size=${not.there}"),
        m("loader.prefetch_factor=${not.there}"), m("loader.nice=${not.there}"),
        m("optimizer.lr=${not.there}"), m("optimizer.params=${not.there}"),
        m("sampler._target_=${not.there}"),
        m("sampler=identity", "sampler.images_per_identity=${not.there}"),
        m("dataset=mix", "dataset.sources.a.dataset=lmdb", "seed=${not.there}"),
        m("trainer.max_epochs=${not.there}"), m("trainer.timeout_s=${not.there}"),
        m("seed=${loader.batch_size}", "loader.batch_size=${seed}", keys="seed loader.batch_size"),
    ],
    "steps": [
        m("augment.train.crop.scale=0.5", kind=LIBRARIES),
        m("augment.train.crop.scael=[0.1,1]", kind=LIBRARIES),
        m("augment.image_sise=3"), m("augment.train.flip._after_=corp"), m("~augment.train.flp"),
        m("augment.train={}"), m("augment.train.flipp.p=1", keys="augment.train.flipp"),
        m("callback=ema", "callback.emaa.decay=0.9", keys="callback.emaa"),
        m("augment.train.flip._after_=crop", "augment.train.crop._after_=flip"),
        m("augment.train.flip._after_=flip"),
    ],
    "samplers": [
        m("sampler=random,weighted"), m("sampler=[random,weighted]"), m("dataset/cache=[ram,disk]"),
        m("sampler=identity", "sampler.images_per_identity=many"),
        m("sampler=identity", "dataset=stream", keys="sampler"),
        m("task=identity", "dataset=stream", keys="sampler"),
        m("sampler=identity", "sampler.batch_size=8"),
    ],
    "imports and components of own files": [
        m("imports=odd_parts.py"), m("imports=[nope.py]"), m("imports=[no_such_module]"),
        m("imports=[odd_parts.py]", "sampler=odd", "sampler.n=3", "sampler.sed=3",
          keys="sampler.n sampler.sed sampler.width"),
        m("imports=[odd_parts.py]", "augment.device.mine._target_=batch_transform/odd",
          "augment.device.mine.seed=3"),
        m("imports=[odd/json.py]", keys="imports"), m("imports=[odd/odd-name.py]", keys="imports"),
        m("model=module", "model.module._target_=os.system"),
        m("model=module", keys="model.module", typed="model.module._target_=<target>"),
        m("imports=null"),
        m("model=module", "model.module._target_=torch.hub.load"), m("dataset.val_path=/no/such"),
    ],
    "targets": [
        m("model._target_=torch.nn.Flatten"), m("optimizer._target_=os.system", kind=LIBRARIES),
        m("optimizer._target_=torch.nn.Linear", kind=LIBRARIES),
        m("optimizer._target_=torch.optim.Adm", kind=LIBRARIES),
        m("sampler._target_=sampler/wieghted"), m("sampler._target_=task/classification"),
        m("optimizer._target_=torch.optim.Optimizer", kind=LIBRARIES),
        m("scheduler._target_=torch.optim.lr_scheduler.warnings.warn", kind=LIBRARIES),
        m("augment.train.flip._target_=albumentations.Compse", kind=LIBRARIES),
        m("loader._target_=settings/trainer"),
    ],
    "data sets of torch": [
        m("dataset=torch", "dataset.target=checked_set.Map"),
        m("dataset=torch", "dataset.target=checked_sets.Other"),
        m("dataset=torch", "dataset.target=checked_sets.Map", keys="dataset.args"),
        m("dataset=torch", "dataset.target=checked_sets.Stream", "sampler=random"),
        m("dataset=torch", "dataset.target=checked_sets.Stream", "sampler=weighted"),
    ],
    "databases and passwords": [
        m("dataset=postgresql", beside="dataset.storage.url=sqlite:///a.db"),
        m("dataset=sql", keys="dataset.storage.url"),
        m("dataset=mysql", beside="dataset.storage.url=sqlite:///a.db"),
        m("dataset=sqlite", beside="dataset.storage.url=sqlite:///a.db"),
        m("dataset=sql",
          "dataset.storage.ulr=postgresql+psycopg://me:geh%40eim:7@host:5432/db?sslmode=require",
          "loader.batch_size=postgresql+psycopg://me:geh%40eim:7@host:5432/db?sslmode=require",
          beside="dataset.storage.url=sqlite:///a.db",
          keys="dataset.storage.url dataset.storage.ulr loader.batch_size"),
    ],
    "image sizes": [
        *(m(f"augment={name}", "augment.size=64")
          for name in ("imagenet", "strong", "light", "segmentation", "keypoints")),
        *(m(f"augment={name}", "augment.height=64", "augment.width=64",
            keys="augment.height augment.width") for name in ("imagenet", "strong", "light")),
        m("augment=imagenet", "augment.image_size=300", keys="augment.eval.crop"),
    ],
    "presets of a folder": [
        m("experiment=bad_option", keys=""), m("experiment=bad_yaml", keys=""),
        m("experiment=bad_order", keys=""),
        m("experiment=bad_key", keys="loader.bach_size"), m("experiment=bad_top", keys="sidee"),
        m("experiment=no_package", keys="experiment"), m("experiment=override_unknown", keys=""),
        m("experiment=override_without_slash", keys=""),
        *(m(f"experiment={name}", "dataset=torch", "dataset.target=tests.torch_datasets.Squares",
            keys="") for name in ("annotation", "annotations", "storage", "cache")),
        m("experiment=presets/experiment/good.yaml"),
    ],
    "names of other tools, at the top and in two wrong places": [
        m(f"{place}{name}={value}", typed=typed if "=" in typed else f"{typed}={value}")
        for name, typed in FOREIGN_NAMES.items()
        for value in [_VALUES.get(name, "3")]
        for place in ("", "trainer.", "data.")
        if place or name != "data_dir"  # a key of the config
    ],
    "longer names of other tools": [
        *(m(given, typed=typed) for given, typed in {
          "num_train_epochs=7": "trainer.max_epochs=7",
          "initial_learning_rate=0.7": "optimizer.lr=0.7",
          "lr_warmup_epochs=7": "scheduler.warmup=0.05", "warmup_steps=7": "scheduler.warmup=7",
          "dataloader_pin_memory=true": "loader.pin_memory=true",
          "dataloader_num_workers=2": "loader.num_workers=2",
          "resume_from_checkpoint=auto": "trainer.resume=auto",
          "loader.eval_batch=8": "loader.eval_batch_size=8",
          "per_device_train_batch_size=8": "loader.batch_size=8",
          "per_device_eval_batch_size=8": "loader.eval_batch_size=8",
          "dataset.data_dir=demo": "dataset.storage.path=demo",
          "dataset.data_root=demo": "dataset.storage.path=demo",
          "dataset.storage.root=demo": "dataset.storage.path=demo"}.items()),
        m("loader.pin_memory_device=cuda"), m("loader.collate_fn=x"),
        m("loader.prefetch=3"), m(*MIX, "dataset.keys={x: image}"),
    ],
}

# Words of a command line, and the key of its problem.
COMMAND_LINES = [
    ("train --package loader", "--package"), ("train -p=loader", "-p"),
    ("train --resolve", "--resolve"), ("train -m --cfg job --package loader", "--cfg"),
    ("train --cfg", "--cfg"), ("train --cfg=", "--cfg"), ("train --config-dir", "--config-dir"),
    ("train --package", "--package"), ("train --cfg hydra", "--cfg"),
    ("train --multirun=2", "--multirun"), ("train --mutlirun", "--mutlirun"),
    ("train --cfg job -p loadr", "--package loader"),
    ("train --cfg job -p loader.x.y", "--package"), ("train -sc install=csh", "install=bash"),
    ("train -m seed=range(0)", "range(0)"), ("train writer=lmdb", "writer"),
    ("pack path=x pack.to=lmbd", "pack.to"), ("pack path=x to=lmdb writer.shard=3", "writer.shard"),
    ("pack path=packed pack.compression=zstd", "pack.compression"),
    ("pack path=packed to=lmdb writer.compression=zstd", "writer.compression"),
    ("bench loader.num_workers=0,x", "loader.num_workers"),
    ("bench loader.num_worker=0,1", "loader.num_worker"),
    ("bench bench.seconds=1,2", "bench.seconds"), ("bench seconds=1,2", "seconds"),
    ("bench second=3", "type bench.seconds=3"), ("export a outptu=b", "type export.output=b"),
    ("bench bench.second=3", "bench.second"), ("doctor sampler=wheighted", "sampler"),
    ("bench seed=1,2 loader.num_workers=0,1 loader.batch_size=8,16", "swept"), ("trian", "trian"),
    ("train --help nonsense", "nonsense"), ("train --help lmdb", "lmdb"),
]

_PRESET = "# @package _global_\n"
_OVERRIDE = f"{_PRESET}defaults:\n  - override "
_PRESETS = {
    "good": f"{_PRESET}seed: 7\n", "no_package": "seed: 7\n",
    "bad_order": f"{_OVERRIDE}/sampler: random\n  - /callback: [ema]\n",
    "bad_option": f"{_OVERRIDE}/sampler: weihgted\n", "bad_yaml": f"{_PRESET}loader: [\n",
    "bad_key": f"{_PRESET}loader:\n  bach_size: 3\n", "bad_top": f"{_PRESET}sidee: 3\n",
    "override_unknown": f"{_OVERRIDE}nonsense: foo\n",
    "override_without_slash": f"{_OVERRIDE}optimizer: sgd\n",
    "annotation": f"{_OVERRIDE}/dataset/annotation: coco\n",
    "annotations": f"{_OVERRIDE}/dataset/annotations: cocoo\n",
    "storage": f"{_OVERRIDE}/dataset/storage: lmdb\n", "cache": f"{_OVERRIDE}/dataset/cache: ram\n",
}
_FILES = {
    "photo.txt": "", "packed.lmdb": "", "photos/cat/notes.txt": "", "my fotos/notes.txt": "",
    "odd/json.py": "raise SystemExit('imported')\n", "odd/odd-name.py": "",
    "checked_sets.py":
        "from torch.utils.data import Dataset, IterableDataset\n"
        "class Map(Dataset):\n    def __init__(self, n): ...\n"
        "class Stream(IterableDataset): ...\nclass Other: ...\n",
    "table_nets.py":
        "import os\nimport torch\nclass Plain: ...\ndef net(): ...\n"
        "class Net(torch.nn.Module):\n    def __init__(self, width, num_classes): ...\n",
    "odd_parts.py":
        "from penstock import register\n"
        "@register('sampler', 'odd')\n"
        "class Odd:\n    def __init__(self, n: int, seed: int, *, width: int): ...\n"
        "@register('batch_transform', 'odd')\n"
        "def odd(batch, *, seed: int, factor: int = 1): ...\n",
    **{f"presets/experiment/{name}.yaml": text for name, text in _PRESETS.items()},
}
# fmt: on


def make_files(folder: Path) -> None:
    """Write the small files that entries of the table name."""
    for name, text in _FILES.items():
        (file := folder / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
