"""Pages of the site from outside of docs/: README is its start, and what pages link to is in it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LISTED = ("README.md", "benchmarks/README.md", "tests/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=[)#])")


def page_of(file: str) -> str:
    """Name the page that shows a file of the repository."""
    if file == "README.md":
        return "index.md"
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return file if file.endswith(".md") else f"{file}.md"


def linked(file: str) -> Iterator[str]:
    """Yield the files of the repository that a page of it links to."""
    for link in _LINK.findall((ROOT / file).read_text()):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(file), link))


def from_outside() -> dict[str, str]:
    """Make the pages of files outside of docs/: those listed, and those that pages link to."""
    todo = [*LISTED, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
    files = dict.fromkeys(todo)
    while todo:
        file = todo.pop()
        for other in linked(file) if file.endswith(".md") else ():
            if other not in files and (ROOT / other).is_file():
                files[other] = None
                todo.append(other)
    return {page_of(file): _shown(file) for file in files if not file.startswith("docs/")}


def _shown(file: str) -> str:
    text = (ROOT / file).read_text()
    if not file.endswith(".md"):
        language = Path(file).suffix.lstrip(".")
        return f"# {file}\n\n```{language}\n{text}```\n"
    folder = posixpath.dirname(page_of(file))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), link[1]))
        return posixpath.relpath(page_of(target), folder or ".")

    return _LINK.sub(moved, text)


def on_config(config: Any) -> Any:
    """Add the pages of docs/ that the navigation does not name to its guides."""
    [guides] = [item["Guides"] for item in config.nav if "Guides" in item]
    named = repr(config.nav)
    for page in sorted((ROOT / "docs").glob("*.md")):
        if f"'{page.name}'" not in named:
            guides.append(page.name)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/."""
    from mkdocs.structure.files import File

    for page, text in from_outside().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links of docs/ that lead out of it to the pages made here."""
    if page.file.generated_by is not None:
        return markdown

    def moved(link: re.Match[str]) -> str:
        return page_of(link[1].removeprefix("../")) if link[1].startswith("../") else link[1]

    return _LINK.sub(moved, markdown)
