"""Draw a preview from a config, and write its files: only over an earlier one, and whole."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import DatasetCapabilities, StreamDataset, capabilities_of
from penstock.core.sample import BadSample
from penstock.datasets.mix import SOURCE
from penstock.pipeline.build import build_dataset, build_sampler, open_storage
from penstock.pipeline.commands.preview.charts import Survey, make_charts
from penstock.pipeline.commands.preview.fields import (
    Classes,
    TableRows,
    columns_of,
    table_rows,
)  # fmt: skip
from penstock.pipeline.commands.preview.looks import Looks, look
from penstock.pipeline.commands.preview.page import HTML_MARK, as_png, draw_sheet, write_page
from penstock.pipeline.commands.preview.picture import PointNames, Row, draw_cell, rendered
from penstock.pipeline.config.places import sources_of
from penstock.pipeline.loader.loader import classes_of
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.pipeline.training.output import check_output, write_output

if TYPE_CHECKING:
    from penstock.pipeline.commands.preview import PreviewSettings

SOFTWARE = "penstock preview"
_ORIGINAL = "original"
_PNG_MARK = f"Software\0{SOFTWARE}".encode()
_LOOKED_AT = 4096
_FIELDS = ("label", "labels", "values", "box_labels", "mask", SOURCE)


def show(config: dict[str, Any], settings: PreviewSettings) -> int:
    """Read samples, draw them, and write the picture and the page.

    Raises:
        ValueError: There is nothing to be shown, or no place to write to.
    """
    import yaml

    given = Path(settings.path).expanduser()
    png_path, html_path = given.with_suffix(".png"), given.with_suffix(".html")
    paths, endings = [given, png_path, html_path], [".png", ".html"]
    check_output("preview.path", paths, endings, overwrite=settings.overwrite, is_ours=_is_preview)
    dataset: Any = build_dataset(config, settings.split)
    sampler = sampler_of(config, settings, dataset)
    looks = look(config, settings.split, dataset, sampler, settings)
    classes = {name: Classes(classes_of(dataset, name)) for name in _FIELDS}
    ignored = frozenset(config["task"].get("ignore") or ())
    classes["mask"] = Classes(classes["mask"].names, ignored)
    per_object = (config["augment"].get("keypoints") or {}).get("per_object")
    points = PointNames(classes_of(dataset, "keypoints"), per_object)
    node, table = config["dataset"], None
    known = capabilities_of(dataset, DatasetCapabilities).table
    if known is not None and "storage" in node:
        storage = open_storage(config, settings.split)
        table = table_rows(known, storage, looks.originals, node.get("keys"))
    rows = draw_rows(looks, settings.size, classes, points, table)
    survey = _survey(config, settings, dataset, looks)
    survey.add_masks(looks.originals)
    figures, remarks = make_charts(dataset, sampler, survey, classes)
    charts = {title: rendered(figure) for title, figure in figures.items()}
    columns = columns_of(table.statistics) if table else []
    heading, notes = _heading(config, settings, looks, dataset), [*looks.notes, *columns, *remarks]
    sheet = draw_sheet(heading, notes, rows, charts)
    shown = {key: value for key, value in config.items() if key != "preview"}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    page = write_page(heading, notes, rows, charts, text)
    contents = {png_path: as_png(sheet, software=SOFTWARE), html_path: page.encode()}
    write_output("preview.path", contents)
    for note in notes:
        print(note)
    height, width = sheet.shape[:2]
    print(f"{heading}: {width} x {height} pixels")
    print(f"written: {png_path} and {html_path}")
    if settings.open and not webbrowser.open(html_path.resolve().as_uri()):
        print("no browser was found to show the page in; open it by hand")
    return 0


def sampler_of(config: dict[str, Any], settings: PreviewSettings, dataset: Any) -> Any:
    """Build the sampler of the split; None for a stream."""
    if isinstance(dataset, StreamDataset):
        return None
    if settings.split == "val" or not len(dataset):
        return SequentialSampler(len(dataset))
    return build_sampler(config, dataset)


def draw_rows(
    looks: Looks,
    size: int,
    classes: dict[str, Classes],
    points: PointNames,
    table: TableRows | None,
) -> list[Row]:
    """Draw a row of cells for each record.

    Args:
        looks: The samples.
        size: The longer side of a picture, in pixels.
        classes: Names by field.
        points: Names of keypoints.
        table: The records' columns, if they are rows of a table.
    """
    rows = []
    for samples in zip(looks.originals, *looks.epochs.values(), strict=True):
        cells = []
        for title, sample in zip((_ORIGINAL, *looks.epochs), samples, strict=True):
            columns = table.lines(sample, is_original=title == _ORIGINAL) if table else []
            cells.append(
                draw_cell(sample, title, size=size, classes=classes, points=points, columns=columns)
            )
        one = samples[0]
        named = asdict(one) if isinstance(one, BadSample) else one
        rows.append(Row(f"{named['key']} · position {named['position']}", tuple(cells)))
    return rows


def _survey(
    config: dict[str, Any], settings: PreviewSettings, dataset: Any, looks: Looks
) -> Survey:
    sources, survey = sources_of(config), Survey()
    parts = list(sources.values()) or [config]
    if isinstance(dataset, StreamDataset) or any("storage" not in p["dataset"] for p in parts):
        for sample in looks.originals:
            if not isinstance(sample, BadSample):
                survey.add(sample)
        return survey
    ids = dataset.index.class_ids if sources else [{}]
    for part, own in zip(parts, ids, strict=True):
        storage, keys = open_storage(part, settings.split), part["dataset"].get("keys")
        survey.add_storage(storage, -(-settings.records // len(parts)), keys, own.get("box_labels"))
    return survey


def _heading(config: dict[str, Any], settings: PreviewSettings, looks: Looks, dataset: Any) -> str:
    node = config["dataset"]
    where = node.get("storage") or node.get("source") or {}
    named = " + ".join(sources_of(config))
    place = named or node.get("target") or where.get("path") or node["_target_"]
    count = len(looks.originals)
    heading = f"{place}, {settings.split}: {count} {'sample' if count == 1 else 'samples'}"
    if not isinstance(dataset, StreamDataset):
        heading += f" of {len(dataset):,}"
    if settings.split == "train":
        heading += f", {settings.epochs} {'epoch' if settings.epochs == 1 else 'epochs'}"
    return heading


def _is_preview(path: Path) -> bool:
    if not path.is_file():  # a link that leads nowhere
        return False
    with open(path, "rb") as file:
        start = file.read(_LOOKED_AT)
    return _PNG_MARK in start or HTML_MARK.encode() in start
