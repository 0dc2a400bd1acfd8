"""The floors: an import goes down, never up, and never sideways in a circle."""

from __future__ import annotations

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.heavy_modules import HEAVY

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {"core": 0, "datasets": 1, "transforms": 1, "pipeline": 2}
SOURCES = sorted(file for room in FLOORS for file in (ROOT / room).rglob("*.py"))


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    named = {}
    for file in SOURCES:
        parts = file.relative_to(ROOT).with_suffix("").parts
        named[".".join(("penstock", *parts)).removesuffix(".__init__")] = file
    return named


@cache
def imported(file: Path, *, at_once: bool = False) -> frozenset[str]:
    """Dotted names that a file imports; with `at_once` only those that loading it imports."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        )
        if at_once and deferred:
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return frozenset(names)


def ours(file: Path) -> set[Path]:
    """The files of ours that a file imports, anywhere in it."""
    found = {modules()[name] for name in imported(file) if name in modules()}
    return {other for other in found if other.name != "__init__.py"} - {file}


def room(file: Path) -> str:
    """``datasets/storages``, ``pipeline/loader``, ``pipeline/build.py``: what lies on a floor."""
    parts = file.relative_to(ROOT).parts
    return parts[0] if parts[0] == "core" else "/".join(parts[:2])


@pytest.mark.parametrize("floor", FLOORS)
def test_an_import_goes_down(floor):
    wrong = [
        f"{file.relative_to(ROOT)} -> {other.relative_to(ROOT)}"
        for file in SOURCES
        if file.relative_to(ROOT).parts[0] == floor
        for other in sorted(ours(file))
        if other.relative_to(ROOT).parts[0] != floor
        and FLOORS[other.relative_to(ROOT).parts[0]] >= FLOORS[floor]
    ]
    assert wrong == []


def test_no_rooms_import_each_other_in_a_circle():
    graph: dict[str, dict[str, str]] = {}
    for file in SOURCES:
        for other in ours(file):
            if room(file) != room(other):
                ties = graph.setdefault(room(file), {})
                ties[room(other)] = f"{file.relative_to(ROOT)} -> {other.relative_to(ROOT)}"
    circles, done, path = [], set(), []

    def visit(node: str) -> None:
        if node in path:
            circle = [*path[path.index(node) :], node]
            circles.append([graph[a][b] for a, b in pairwise(circle)])
            return
        if node in done:
            return
        path.append(node)
        for other in sorted(graph.get(node, {})):
            visit(other)
        path.pop()
        done.add(node)

    for node in sorted(graph):
        visit(node)
    assert circles == []


def test_no_module_imports_itself_through_others():
    done: set[Path] = set()
    path: list[Path] = []

    def visit(file: Path) -> None:
        if file in path:
            circle = [*path[path.index(file) :], file]
            raise AssertionError(" -> ".join(str(f.relative_to(ROOT)) for f in circle))
        if file in done:
            return
        path.append(file)
        for name in sorted(imported(file, at_once=True)):
            if name in modules() and modules()[name].name != "__init__.py":
                visit(modules()[name])
        path.pop()
        done.add(file)

    for file in SOURCES:
        visit(file)


@pytest.mark.parametrize("heavy", HEAVY)
def test_what_components_register_in_imports_nothing_heavy(heavy):
    """A typo in a config is answered without waiting for torch."""
    found = [
        str(file.relative_to(ROOT))
        for file in SOURCES
        if "@register(" in file.read_text()
        and heavy in {name.partition(".")[0] for name in imported(file, at_once=True)}
    ]
    assert found == []


def test_every_folder_is_a_package_that_src_links_to():
    """`packages.find` takes folders with an `__init__.py`, below the links in `src/penstock`."""
    folders = {file.parent for file in SOURCES}
    assert [f for f in sorted(folders) if not (f / "__init__.py").exists()] == []
    links = {link.name: link.resolve() for link in (ROOT / "src/penstock").glob("[!_]*")}
    assert links.pop("py.typed").is_file()
    assert links == {name: ROOT / name for name in (*FLOORS, "conf")}
    assert (ROOT / "src/penstock/__init__.py").resolve() == ROOT / "__init__.py"


def test_no_folder_is_a_drawer():
    """A reader takes in about fifteen things at a glance, some more where they are leaves."""
    shown: dict[Path, int] = {}
    for file in SOURCES:
        shown[file.parent] = shown.get(file.parent, 0) + (file.name != "__init__.py")
    for folder in {*shown}:
        if folder.parent != ROOT:
            shown[folder.parent] = shown.get(folder.parent, 0) + 1
    assert {str(f.relative_to(ROOT)): n for f, n in shown.items() if n > 18} == {}
