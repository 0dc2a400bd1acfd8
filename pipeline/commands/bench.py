"""``python -m pipeline bench``: how fast data comes, how fast the model takes it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pipeline.registry import register


@register("settings", "bench")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How long to measure.

    Args:
        seconds: Time given to each measurement.
        stage_samples: Number of samples that are timed stage by stage, in one thread.
        split: The split to read.
    """

    seconds: float = 5.0
    stage_samples: int = 256
    split: str = "train"


def run(config: dict[str, Any]) -> int:
    """Measure stages, loader and model, and say which is the limit."""
    from pipeline.build import build_dataset, build_settings

    settings: BenchSettings = build_settings(config["bench"])
    dataset = build_dataset(config, settings.split)  # type: ignore[arg-type]
    if hasattr(dataset, "storage"):
        _print_stages(config, dataset, settings)
    loader_rate = _loader_rate(config, settings)
    model_rate = _model_rate(config, settings)
    workers = config["loader"]["num_workers"]
    print(f"\nloader alone   {loader_rate:>10,.0f} samples/s  ({workers} workers)")
    print(f"model alone    {model_rate:>10,.0f} samples/s  (training step on one kept batch)")
    if loader_rate < model_rate:
        share = 1 - loader_rate / model_rate
        print(f"The loader is the limit: the model would wait about {share:.0%} of its time.")
        print("Try more loader.num_workers, dataset=lmdb, or a lighter augment.")
    else:
        print("The model is the limit: data is there before it is needed.")
    return 0


def _print_stages(config: dict[str, Any], dataset: Any, settings: BenchSettings) -> None:
    """Time read, decode, transform and collate of some samples, one thread, no workers."""
    from datasets.sample import Record
    from datasets.stages import deferred
    from pipeline.build import build, build_transform
    from pipeline.rng import KeyedRng

    count = min(settings.stage_samples, len(dataset))
    if not count:
        return
    indices = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
    decoder = build(config["dataset"]["decode"])
    transform = build_transform(config, settings.split)  # type: ignore[arg-type]
    decode = deferred(decoder, transform)
    collate, rng = build(config["collate"]), KeyedRng()

    records = [r for r in dataset.storage.read(indices) if isinstance(r, Record)]
    times: dict[str, float] = {}
    times["read"], _ = _timed(lambda: dataset.storage.read(indices))
    print(_decoding_line(decoder, transform, records))
    waiting = decode == getattr(
        decoder, "defer", None
    )  # only headers are read then, and the transform decodes
    decoding, rest = ("header", "decode and transform") if waiting else ("decode", "transform")
    times[decoding], samples = _timed(lambda: [decode(record) for record in records])
    for position, sample in enumerate(samples):
        sample["position"] = position
    transform(dict(samples[0]), rng.at(0, 0, 0))  # the first call builds the stack
    times[rest], samples = _timed(
        lambda: [transform(s, rng.at(0, 0, s["position"])) for s in samples]
    )
    times["collate"], _ = _timed(lambda: collate(samples))
    total = sum(times.values())
    print(f"one thread, {len(samples)} samples:")
    for name, seconds in times.items():
        each = seconds / len(samples) * 1e6
        print(f"  {name:<20} {each:>9.1f} us a sample  {seconds / total:>4.0%}")
    print(f"  {'together':<20} {total / len(samples) * 1e6:>9.1f} us a sample")


def _decoding_line(decode: Any, transform: Any, records: list[Any]) -> str:
    """Which way of decoding is taken, and why."""
    from transforms.formats.sniff import read_header

    if not hasattr(decode, "whole_because"):
        return "decoding: as the decoder does it"
    reason = getattr(transform, "whole_because", lambda: "the transform is not a stack")()
    if reason is not None:
        return f"decoding: images whole, {reason}"
    reasons: Counter[str | None] = Counter()
    for record in records:
        try:
            reasons[decode.whole_because(read_header(bytes(record.fields["image"])))] += 1
        except (ValueError, KeyError):
            reasons["damaged"] += 1
    parts = reasons.pop(None, 0)
    line = f"decoding: of {parts} of {len(records)} images only what the first crop needs"
    whole = ", ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
    return f"{line}; whole: {whole}" if whole else line


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _loader_rate(config: dict[str, Any], settings: BenchSettings) -> float:
    """Samples per second of the loader alone, after the first batch."""
    from pipeline.build import build_loader

    start = time.perf_counter()
    samples = 0
    with build_loader(config, settings.split) as loader:  # type: ignore[arg-type]
        begin = None
        while begin is None or time.perf_counter() - begin < settings.seconds:
            for batch in loader:
                if begin is None:
                    begin = time.perf_counter()
                    print(f"\nfirst batch after {begin - start:.2f} s, workers started included")
                    continue
                samples += int(batch["valid"].sum())
                if time.perf_counter() - begin >= settings.seconds:
                    break
        return samples / (time.perf_counter() - begin)


def _model_rate(config: dict[str, Any], settings: BenchSettings) -> float:
    """Samples per second of training steps on one batch that is kept on the device."""
    import torch

    from pipeline.build import (
        build_device_transforms,
        build_loader,
        build_model,
        build_optimizer,
        build_task,
    )

    inline = deepcopy(config)
    inline["loader"] |= {"engine": "inline", "num_workers": 0}
    with build_loader(inline, settings.split) as loader:  # type: ignore[arg-type]
        batch = next(islice(loader, 1))
        class_names = loader.class_names
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_classes = len(class_names) if class_names else int(batch["label"].max()) + 1
    model = build_model(config, num_classes).to(device)
    task = build_task(config, num_classes, class_names)
    optimizer = build_optimizer(config, model.parameters())
    batch = {k: v.to(device) if hasattr(v, "to") else v for k, v in batch.items()}
    for transform in build_device_transforms(config):
        batch = transform(batch)

    def step() -> None:
        torch.stack(list(task.losses(model(batch), batch).values())).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    step()
    begin = time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < settings.seconds:
        step()
        steps += 1
    return steps * len(batch["valid"]) / (time.perf_counter() - begin)
