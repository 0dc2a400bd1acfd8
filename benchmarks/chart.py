"""Draw the first table of `README.md` as the chart of the project's front page.

``python benchmarks/chart.py`` writes ``docs/images/speed.png``.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<speed>[\d,]+) \|", re.MULTILINE)
SHOWN = {
    "**ours**, tiled JPEG, processes": "Penstock, packed as tiled JPEG",
    "**ours**, files, processes": "Penstock, the files as they are",
    "HF datasets": "Hugging Face datasets",
    "torchdata nodes": "torchdata nodes",
    "SPDL, a task per batch": "SPDL",
    "litdata": "LitData",
    "torch DataLoader, cv2, albumentations": "DataLoader, OpenCV, albumentations",
    "grain, threads, a task per batch": "Grain",
    "webdataset": "WebDataset",
    "FFCV, all images as JPEG (quality 95), not resized": "FFCV",
    "mosaicml-streaming": "MosaicML Streaming",
    "NVIDIA DALI on the CPU (decodes regions)": "NVIDIA DALI (CPU)",
    "torch DataLoader, PIL": "DataLoader, Pillow",
}


def main() -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    text = (ROOT / "benchmarks/README.md").read_text().partition("**Prepared data**")[0]
    speeds = {m["name"]: int(m["speed"].replace(",", "")) for m in ROW.finditer(text)}
    rows = sorted((speeds[name], label) for name, label in SHOWN.items())
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    colours = ["#2a6f97" if "Penstock" in label else "#b8c4cc" for _, label in rows]
    bars = axes.barh([label for _, label in rows], [speed for speed, _ in rows], color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize=9)
    figure.suptitle("110 kB photographs to random crops of 224 pixels: images per second", size=11)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    figure.savefig(ROOT / "docs/images/speed.png", dpi=130)


if __name__ == "__main__":
    main()
