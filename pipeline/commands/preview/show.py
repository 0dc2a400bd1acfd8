"""A preview from the config to its files."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets.mix_index import SOURCE
from datasets.sample import BadSample
from pipeline.build import build_dataset, build_sampler, open_storage
from pipeline.commands.preview.cells import Row
from pipeline.commands.preview.choice import Looks, look
from pipeline.commands.preview.files import check_free, marked_png, targets, write_all
from pipeline.commands.preview.lettering import has_font
from pipeline.commands.preview.overlays import Classes
from pipeline.commands.preview.page import write_page
from pipeline.commands.preview.picture import draw_cell
from pipeline.commands.preview.plots import make_charts
from pipeline.commands.preview.points import PointNames
from pipeline.commands.preview.sheet import draw_sheet
from pipeline.commands.preview.survey import Survey, survey_samples, survey_storage
from pipeline.commands.preview.tables import TableRows, table_rows
from pipeline.config.sources import sources_of
from pipeline.loader.class_names import classes_of
from pipeline.samplers.sequential import SequentialSampler

if TYPE_CHECKING:
    from pipeline.commands.preview import PreviewSettings

_FIELDS = ("label", "box_labels", "mask", SOURCE)


def show(config: dict[str, Any], settings: PreviewSettings) -> int:
    """Read samples, draw them, and write the picture and the page.

    Raises:
        ValueError: There is nothing to be shown, or no place to write to.
    """
    import yaml

    paths = png_path, html_path = targets(settings.path)
    check_free(paths, overwrite=settings.overwrite)
    dataset: Any = build_dataset(config, settings.split)
    sampler = _sampler(config, settings, dataset)
    looks = look(config, settings.split, dataset, sampler, settings)
    classes = {name: _classes(config, dataset, name) for name in _FIELDS}
    table = _table(config, settings, dataset, looks)
    rows = draw_rows(looks, settings.size, classes, _point_names(config, dataset), table)
    survey = _survey(config, settings, dataset, looks)
    charts = make_charts(dataset, sampler, survey, classes)
    heading, notes = _words(config, settings, looks, dataset)
    sheet = draw_sheet(heading, notes, rows, charts)
    shown = {key: value for key, value in config.items() if key != "preview"}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    page = write_page(heading, notes, rows, charts, text, size=settings.size, encode=as_png)
    write_all({png_path: marked_png(as_png(sheet)), html_path: page.encode()})
    for note in looks.notes:
        print(note)
    if not has_font():
        print("names are drawn in ASCII letters; pip install matplotlib draws them in a font")
    height, width = sheet.shape[:2]
    print(f"{heading}: {width} x {height} pixels")
    print(f"written: {png_path} and {html_path}")
    if settings.open and not webbrowser.open(html_path.resolve().as_uri()):
        print("no browser was found to show the page in; open it by hand")
    return 0


def as_png(picture: NDArray[np.uint8]) -> bytes:
    """A picture [H, W, 3], RGB, as a PNG."""
    import cv2

    done, encoded = cv2.imencode(".png", picture[:, :, ::-1])
    assert done
    return encoded.tobytes()


def _sampler(config: dict[str, Any], settings: PreviewSettings, dataset: Any) -> Any:
    """Which record stands at a position of the split; None for a stream."""
    if not hasattr(dataset, "__len__"):
        return None
    if settings.split == "val" or not len(dataset):
        return SequentialSampler(len(dataset))
    return build_sampler(config, dataset)


def _classes(config: dict[str, Any], dataset: Any, name: str) -> Classes:
    ignored = config["task"].get("ignore") if name == "mask" else None
    return Classes(classes_of(dataset, name), frozenset(ignored or ()))


def _point_names(config: dict[str, Any], dataset: Any) -> PointNames:
    keypoints = config["augment"].get("keypoints") or {}
    return PointNames(classes_of(dataset, "keypoints"), keypoints.get("per_object"))


def _table(
    config: dict[str, Any], settings: PreviewSettings, dataset: Any, looks: Looks
) -> TableRows | None:
    if "storage" not in config["dataset"] or getattr(dataset, "table", None) is None:
        return None
    storage = open_storage(config, settings.split)
    return table_rows(dataset.table, storage, looks.originals, config["dataset"].get("keys"))


def draw_rows(
    looks: Looks,
    size: int,
    classes: dict[str, Classes],
    points: PointNames,
    table: TableRows | None,
) -> list[Row]:
    """A row of cells for each record.

    Args:
        looks: The samples.
        size: The longer side of a picture, in pixels.
        classes: Names by field.
        points: Names of keypoints.
        table: The records' columns, if they are rows of a table.
    """
    rows = []
    for number, original in enumerate(looks.originals):
        looked = {"original": looks.originals, **looks.epochs}
        cells = tuple(
            draw_cell(
                samples[number],
                title,
                size=size,
                classes=classes,
                points=points,
                entries=table.entries(samples[number], is_original=title == "original")
                if table is not None
                else (),
            )
            for title, samples in looked.items()
        )
        bad = isinstance(original, BadSample)
        key = original.key if bad else original["key"]
        position = original.position if bad else original["position"]
        rows.append(Row(str(key), int(position), cells))
    return rows


def _survey(
    config: dict[str, Any], settings: PreviewSettings, dataset: Any, looks: Looks
) -> Survey:
    sources = sources_of(config)
    parts = list(sources.values()) or [config]
    if any("storage" not in part["dataset"] for part in parts) or not hasattr(dataset, "fetch"):
        return survey_samples(looks.originals, None)
    survey = Survey()
    ids = dataset.index.class_ids if sources else [{}]
    for part, own in zip(parts, ids, strict=True):
        storage = open_storage(part, settings.split)
        records = -(-settings.records // len(parts))
        found = survey_storage(storage, records, part["dataset"].get("keys"))
        survey.join(found, own.get("box_labels"))
    return survey


def _words(
    config: dict[str, Any], settings: PreviewSettings, looks: Looks, dataset: Any
) -> tuple[str, list[str]]:
    """The heading, and remarks below it."""
    node = config["dataset"]
    where = node.get("storage") or node.get("source") or {}
    named = " + ".join(sources_of(config))
    place = named or node.get("target") or where.get("path") or node["_target_"]
    count = len(looks.originals)
    heading = f"{place}, {settings.split}: {count} {'sample' if count == 1 else 'samples'}"
    if hasattr(dataset, "__len__"):
        heading += f" of {len(dataset):,}"
    if settings.split == "train":
        heading += f", {settings.epochs} {'epoch' if settings.epochs == 1 else 'epochs'}"
    return heading, list(looks.notes)
