"""Draw a preview from a config, and write its files: only over an earlier one, and whole."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import StreamDataset
from penstock.core.sample import BadSample
from penstock.pipeline.build import build_dataset, build_sampler, open_storage
from penstock.pipeline.commands.preview.charts import Survey, make_charts
from penstock.pipeline.commands.preview.looks import Looks, look
from penstock.pipeline.loader.loader import classes_of
from penstock.pipeline.mixes import sources_of
from penstock.pipeline.pictures.batch import names_in
from penstock.pipeline.pictures.fields import (
    Classes,
    TableRows,
    columns_of,
    table_rows,
)  # fmt: skip
from penstock.pipeline.pictures.page import HTML_MARK, Picture, as_png, draw_sheet, write_page
from penstock.pipeline.pictures.picture import PointNames, Row, draw_cell, rendered
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.pipeline.training.output import check_output, write_output

if TYPE_CHECKING:
    from penstock.pipeline.commands.preview import PreviewSettings

SOFTWARE = "penstock preview"
_ORIGINAL = "original"
_PNG_MARK = f"Software\0{SOFTWARE}".encode()
_LOOKED_AT = 4096


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
    drawn = draw(config, settings)
    shown = {key: value for key, value in config.items() if key != "preview"}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    page = write_page(drawn.heading, drawn.notes, drawn.rows, drawn.charts, text)
    contents = {png_path: drawn._repr_png_(), html_path: page.encode()}
    write_output("preview.path", contents)
    for note in drawn.notes:
        print(note)
    height, width = drawn.sheet.shape[:2]
    print(f"{drawn.heading}: {width} x {height} pixels")
    print(f"written: {png_path} and {html_path}")
    if settings.open and not webbrowser.open(html_path.resolve().as_uri()):
        print("no browser was found to show the page in; open it by hand")
    return 0


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview, which a notebook shows as its picture.

    Attributes:
        heading: What is shown.
        notes: What the model gets, and remarks.
        rows: A row of cells for each sample.
        charts: What the data is like, by title.
        sheet: All of it as one picture, uint8 [H, W, 3].
    """

    heading: str
    notes: list[str]
    rows: list[Row]
    charts: dict[str, Picture]
    sheet: Picture

    def _repr_png_(self) -> bytes:
        return as_png(self.sheet, software=SOFTWARE)


def preview(config: dict[str, Any], **settings: Any) -> Preview:
    """Draw what ``penstock preview`` draws, for a notebook.

    Args:
        config: As `penstock.compose` gives it.
        settings: Those of the command that say what is drawn: ``split``, ``samples``, ``epochs``,
            ``size``, ``records``.
    """
    from penstock.pipeline.commands.preview import PreviewSettings

    return draw(config, PreviewSettings(**settings))


def draw(config: dict[str, Any], settings: PreviewSettings) -> Preview:
    """Read samples and draw them.

    Raises:
        ValueError: There is nothing to be shown.
    """
    dataset: Any = build_dataset(config, settings.split)
    sampler = sampler_of(config, settings, dataset)
    looks = look(config, settings.split, dataset, sampler, settings)
    classes, points = names_in(config, partial(classes_of, dataset))
    node, table = config["dataset"], None
    known = dataset.table
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
    return Preview(heading, notes, rows, charts, sheet)


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
