"""What the user is told before training and after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.loader.stats import padding_text, sources_text
from pipeline.training.distributed import World
from pipeline.training.parts import Parts

_log = logging.getLogger(__name__)


def report_start(parts: Parts, world: World, run_dir: Path) -> None:
    """Say what is about to be trained, on what, and where."""
    model_size = sum(parameter.numel() for parameter in parts.model.parameters())
    batch_size = parts.train.loader.batch_size
    lines = {
        "data": _data(parts),
        "batch": _batch(batch_size, world.size),
        "model": f"{type(parts.model).__name__}, {model_size:,} parameters",
        "on": _device(world),
        "run": str(run_dir),
    }
    for name, text in lines.items():
        _log.info("%-5s %s", name, text)


def _data(parts: Parts) -> str:
    train, val = parts.train.loader, parts.val.loader if parts.val is not None else None
    classes = getattr(parts.task, "class_names", None) or getattr(train, "class_names", None)
    texts = [f"train {_size(train)}"]
    texts.append(f"val {_size(val)}" if val is not None else "no validation data")
    if classes:
        names = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        texts.append(f"{len(classes)} classes ({names})")
    return ", ".join(texts)


def _size(loader: Any) -> str:
    try:
        batches = "1 batch" if len(loader) == 1 else f"{len(loader):,} batches"
    except TypeError:
        return "a stream"
    dataset: Any = getattr(loader, "dataset", None)
    if not hasattr(dataset, "__len__"):
        return batches
    sources = len(getattr(getattr(loader, "stats", None), "drawn", ()))
    of_sources = f" of {sources} sources" if sources else ""
    samples = "1 sample" if len(dataset) == 1 else f"{len(dataset):,} samples"
    return f"{samples}{of_sources} in {batches}"


def _batch(size: int, ranks: int) -> str:
    if ranks == 1:
        return f"{size}"
    low, high = size // ranks, -(-size // ranks)
    return f"{size} = {ranks} ranks x {low}" + (f" to {high}" if high > low else "")


def _device(world: World) -> str:
    import torch

    if world.device.type == "cuda":
        return f"{world.device} ({torch.cuda.get_device_name(world.device)})"
    threads = torch.get_num_threads()
    return f"{world.device}, {threads} thread{'s' if threads > 1 else ''}"


def report_end(
    results: Mapping[str, Any], times: Mapping[str, Mapping[str, float]], *, interrupted: bool
) -> None:
    """Say what came out, where the time went, and where it lies.

    Args:
        results: What training returns.
        times: `Meter.summary` of ``train`` and of ``val``.
        interrupted: Whether the run is to be gone on with.
    """
    if interrupted:
        _log.info(
            "stopped at step %d; go on with trainer.resume=%s", results["step"], results["run_dir"]
        )
    figures = [
        f"{name[4:]} {value:.2%}" if name.endswith("accuracy") else f"{name[4:]} {value:.4g}"
        for name, value in results.items()
        if name.startswith("val/")
    ]
    lines = {
        "result": ", ".join(figures) or "not validated",
        **_speeds(times),
        "bad": f"{results['bad_samples']} bad samples",
        "outputs": str(results["run_dir"]),
    }
    for name, text in lines.items():
        _log.info("%-10s %s", name, text)


def _speeds(times: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Lines on where the time went; without steps, that there were none."""
    lines: dict[str, str] = {}
    for split, name in (("train", "speed"), ("val", "val")):
        figures = times[split]
        if not figures:
            continue
        lines[name] = (
            f"{figures['samples_per_s']:,.0f} samples/s, {figures['data_wait']:.0%} of the time "
            f"waiting for data"
        )
        if figures["copy"]:
            lines[name] += f", {figures['copy']:.0%} with copies to the device under way"
        stages = {key[:-3]: value for key, value in figures.items() if key.endswith("_us")}
        if stages:
            total = max(sum(stages.values()), 1e-9)
            parts = [f"{k} {v:,.0f} us ({v / total:.0%})" for k, v in stages.items()]
            loader = "loader" if split == "train" else "val loader"
            lines[loader] = f"a sample in its threads: {', '.join(parts)}"
        drawn = {k.removeprefix("drawn_"): v for k, v in figures.items() if k.startswith("drawn_")}
        if drawn and split == "train":
            lines["drawn"] = sources_text(drawn)
        if "padding" in figures:
            padding = "padding" if split == "train" else "val padding"
            random = figures.get("padding_of_random_order")
            lines[padding] = padding_text(figures["padding"], random)
        if "cache_hits" in figures:
            cache = "cache" if split == "train" else "val cache"
            lines[cache] = f"had {figures['cache_hits']:.0%} of the records"
    return lines or {"speed": "no step was made"}
