"""A page for each group of options and one of the commands, from the registry, as ``--help`` is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.core import registry
from penstock.core.registry import Component
from penstock.pipeline.commands import COMMANDS
from penstock.pipeline.config.components import LEAVES
from penstock.pipeline.config.compose import prepare
from penstock.pipeline.config.help import components_of, described, group_summary
from penstock.pipeline.config.options import CONF, groups, options_of, summaries
from penstock.pipeline.config.places import AUGMENT, CHOSEN_BY, PARTS, PLACES

_SECTION = re.compile(r"\n+(?:Args|Attributes|Returns|Raises|Yields):\n")
_EXTRA = re.compile(r"\bthe extra `?(\w+)")


def pages() -> dict[str, str]:
    """Make all pages: their text by their names."""
    prepare()
    made = {"index.md": _index(), "commands.md": _commands()}
    return made | {page_name(group): _group(group) for group in groups()}


def page_name(group: str) -> str:
    """Name the page of a group."""
    return f"{group.replace('/', '_')}.md"


def extras_of(component: Component) -> list[str]:
    """Find the extras that a component may need: its errors or its docstring name them.

    A leaf that is a folder is searched as a whole.
    """
    file = Path(inspect.getfile(inspect.unwrap(component.target)))
    package = component.target.__module__.rpartition(".")[0]
    alone = package in LEAVES or package.count(".") < 2
    files = [file] if alone else sorted(file.parent.glob("*.py"))
    return sorted({name for each in files for name in _EXTRA.findall(each.read_text())})


def _index() -> str:
    lines = [
        "# Options",
        "",
        "The groups of `penstock train --help`. `GROUP=NAME` chooses an option, `KEY=VALUE` sets",
        "an argument. These pages are made of the components' own signatures and docstrings.",
        "",
        "| group | what | options |",
        "|---|---|---|",
    ]
    for group in groups():
        page = page_name(group)
        names = ", ".join(f"[`{name}`]({page}#{name})" for name in options_of(group))
        lines.append(f"| [`{group}`]({page}) | {_cell(group_summary(group))} | {names} |")
    lines += ["", "## What a run begins with", "", *_yaml(CONF / "config.yaml")]
    return "\n".join(lines)


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "In the checkout, `python train.py` is `penstock train`. Every command takes the",
        "[options](index.md) of training. A command's own settings may drop its name:",
        "`penstock pack path=packed`.",
        "",
        "| command | what |",
        "|---|---|",
        "| [`penstock train`](#penstock-train) | train, or sweep with `-m` |",
    ]
    for name, command in COMMANDS.items():
        lines.append(f"| [`penstock {name}`](#penstock-{name}) | {_cell(command.what)} |")
    lines += ["", "## penstock train", ""]
    lines += [
        "How long, how precisely and what is kept: [`trainer`](trainer.md). What it is called:"
    ]
    lines += ["", *_component("run", {"_target_": "settings/run"})]
    for name in COMMANDS:
        import_module(f"penstock.pipeline.commands.{name}")  # which registers its settings
        lines += ["", f"## penstock {name}", ""]
        lines += _component(name, {"_target_": f"settings/{name}"})
    return "\n".join(lines)


def _group(group: str) -> str:
    typed = f"{group}=NAME"
    for command, chosen in CHOSEN_BY.items():
        for setting in (name for name, other in chosen.items() if other == group):
            typed = f"penstock {command} {command}.{setting}=NAME"
    what = group_summary(group)
    lines = [f"# {group}", "", f"{what[:1].upper()}{what[1:]}. It is typed as `{typed}`.", ""]
    if libraries := _libraries(group):
        names = " or ".join(f"`{name}`" for name in libraries)
        lines += [f"A config may also name any class of {names}, by its `_target_`.", ""]
    lines += ["| option | what |", "|---|---|"]
    for option, summary in summaries(group):
        lines.append(f"| [`{option}`](#{option}) | {_cell(summary)} |")
    shown: dict[str, str] = {}
    for option, summary in summaries(group):
        lines += ["", f"## {option}", ""]
        if (file := CONF / group / f"{option}.yaml").exists():
            lines += [summary, "", *_yaml(file)]
        for key, node in components_of(group, option):
            target = node["_target_"]
            if (before := shown.setdefault(target, option)) != option and _is_plain(node):
                lines += [f"`{key}` takes what that of [`{before}`](#{before}) does.", ""]
            else:
                lines += _component(key, node)
        below = f"{group}/storage"
        if group == "dataset" and option in options_of(below):
            lines += [f"Its storage is [`{below}={option}`]({page_name(below)}#{option}).", ""]
    return "\n".join(lines)


def _is_plain(node: Mapping[str, Any]) -> bool:
    """Tell whether an option sets no argument of its component: all stand in another's table."""
    return all(key == "_target_" or isinstance(value, dict) for key, value in node.items())


def _libraries(group: str) -> list[str]:
    places = PLACES | {"transform": AUGMENT["train"], "batch_transform": AUGMENT["device"]}
    place = (places | {f"dataset/{name}": part for name, part in PARTS.items()}).get(group)
    return [kind for kind in place.kinds if kind not in registry.GROUPS] if place else []


def _component(key: str, node: Mapping[str, Any]) -> list[str]:
    """Write a component: what it is, what it needs, its arguments."""
    target = node["_target_"]
    component = registry.find(target)
    lines = [f"**`{target}`**", ""]
    if component is not None:
        said = _SECTION.split(inspect.getdoc(component.target) or "")[0]
        lines = [f"**`{target}`**: {said}".replace("``", "`"), ""]
        for extra in extras_of(component):
            lines += [f"Extra: `pip install -c constraints.txt -e '.[{extra}]'`", ""]
    try:
        arguments = list(described(target, f"{key}.", node))
    except (ValueError, ImportError) as error:
        return [*lines, str(error), ""]
    if arguments:
        lines += ["| argument | accepts | what |", "|---|---|---|"]
    for argument in arguments:
        typed = _code(f"{argument.key}={argument.value}")
        lines.append(f"| {typed} | {_cell(argument.accepted)} | {_cell(argument.what)} |")
    return [*lines, ""]


def _yaml(file: Path) -> list[str]:
    name = file.relative_to(CONF.parent)
    text = (f"    {line}".rstrip() for line in file.read_text().splitlines())
    return [f'??? note "{name}"', "", "    ```yaml", *text, "    ```", ""]


def _cell(text: str) -> str:
    """Write a text that stands in a table: its ``|`` would end the cell, and `<x>` be no text."""
    parts = re.split(r"(`[^`]*`)", text.replace("``", "`").replace("|", r"\|"))
    return "".join(part if part[:1] == "`" else part.replace("<", "&lt;") for part in parts)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def on_config(config: Any) -> Any:
    """Put the pages of the groups into the navigation."""
    for item in config.nav:
        if "Options" in item:
            prepare()
            named = [{group: f"options/{page_name(group)}"} for group in groups()]
            item["Options"] = [{"All options": "options/index.md"}, *named]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, f"options/{name}", content=text))
    return files
