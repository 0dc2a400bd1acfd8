"""A page for each group of options and one of the commands, from the registry."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from yaml import safe_load

from penstock.core import registry
from penstock.core.registry import Component
from penstock.pipeline.commands import COMMANDS
from penstock.pipeline.config import values
from penstock.pipeline.config.components import LEAVES
from penstock.pipeline.config.compose import prepare
from penstock.pipeline.config.libraries import family_of, resolve_target
from penstock.pipeline.config.options import (
    CONF,
    STACK_OF,
    groups,
    option_file,
    options_of,
)
from penstock.pipeline.config.places import (
    AUGMENT,
    CHOSEN_BY,
    PARTS,
    PARTS_OF,
    PLACES,
    PRESETS,
)
from penstock.pipeline.config.schema import beside
from penstock.pipeline.config.values import REQUIRED, arguments_of, class_arguments

_SECTION = re.compile(r"\n+(?:Args|Attributes|Returns|Raises|Yields):\n")
_EXTRA = re.compile(r"\bthe extra `?(\w+)")
_ARGS = re.compile(r"^(?:Args|Arguments|Attributes):\n((?:[ ].*\n|\n)*)", re.M)
_ENTRY = re.compile(r"^(\w+)(?: *\(.*?\))?:(.*\n(?:[ ].*\n|\n)*)", re.M)
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


_GROUPS = {
    "experiment": "several choices and values under one name",
    "debug": "small and quick runs that find mistakes",
    "augment": "stacks of named steps: train, eval, device",
    "dataset": "the data: its type, storage and decoding",
    "trainer": "the length and precision of training, and its checkpoints",
    "transform": "changes one sample; transform=NAME adds it as a last step to augment.train",
    "batch_transform": "changes a batch; batch_transform=NAME adds it last to augment.device",
    "dataset/storage": "where records lie",
    "dataset/source": "where a stream comes from",
    "dataset/decode": "bytes to arrays",
    "dataset/cache": "keeps what was read",
    "dataset/annotations": "label files beside the data",
    "writer": "the form that packing writes",
    "task": "losses and metrics",
    "sampler": "which record is at a position",
    "collate": "samples to a batch",
    "loader": "who computes batches",
    "model": "what is trained",
    "optimizer": "how weights are updated",
    "scheduler": "how the learning rate moves",
    "logger": "where metrics go",
    "callback": "takes part in training",
}


class Described(NamedTuple):
    """The help on an argument: its full key, value or ``(required)``, type and docstring."""

    key: str
    value: str
    accepted: str
    what: str


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
    lines += ["Duration, precision and checkpoints: [`trainer`](trainer.md). The name of a run:"]
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
    """Return whether an option sets no argument of its component."""
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
    """Escape a text for a table cell, where ``|`` ends the cell and `<x>` is a tag."""
    parts = re.split(r"(`[^`]*`)", text.replace("``", "`").replace("|", r"\|"))
    return "".join(part if part[:1] == "`" else part.replace("<", "&lt;") for part in parts)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def group_summary(group: str) -> str:
    """Return a line about the options of a group."""
    return _GROUPS.get(group, "")


def components_of(group: str, option: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys and nodes of an option's own components, without the steps of a stack."""
    file = option_file(group, option)
    if file is not None:
        held = safe_load(file.read_text(encoding="utf-8"))
    else:
        held = OmegaConf.to_container(ConfigStore.instance().load(f"{group}/{option}.yaml").node)
    above, _, own = group.rpartition("/")
    for key, node in _components(held):
        if "." not in key:
            below = above if key == own else "" if group in PRESETS else STACK_OF.get(group, group)
            place = ".".join(filter(None, (below.replace("/", "."), key)))
            yield place, node
            for name, part in PARTS_OF.get(node["_target_"], {}).items():
                if "/" in part.kinds[0]:
                    yield f"{place}.{name}.NAME", {"_target_": part.kinds[0]}


def _components(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and node of every component in a config."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield key, node
        for name, value in node.items():
            yield from _components(value, f"{key}.{name}" if key else str(name))


def described(target: str, prefix: str, node: Mapping[str, Any]) -> Iterator[Described]:
    """Yield the help on each argument of a component.

    Args:
        target: A registered component, or a class of a library, which is imported.
        prefix: The key of the component, with a dot at its end.
        node: The values that an option sets.

    Raises:
        ValueError: The library has no such class.
        ImportError: The library is not installed.
    """
    call, place = resolve_target(target), PLACES.get(prefix[:-1])
    what = _documented(call)
    if registry.find(target):
        arguments = arguments_of(target)
    else:
        family = family_of(target)
        arguments = class_arguments(call, family.injected if family else frozenset())
    if place is not None and place.beside is not None:
        arguments = arguments | beside(place, arguments)
        what = _documented(resolve_target(place.beside)) | what
    for name, argument in arguments.items():
        key, value = f"{prefix}{name}", node.get(name, argument.default)
        if not values.holds_component(value):  # a component is described at its own key
            options = options_of(group := key.replace(".", "/"))
            accepted = f"{group}={' or '.join(options)}" if options else _type(argument.annotation)
            text = values.shown(value)
            text = "(required)" if text == REQUIRED else text
            said = re.sub(r"\bNone\b", "null", what.get(name, "")).replace("``", "`")
            yield Described(key, text, accepted, said)


def _documented(call: Callable[..., Any]) -> dict[str, str]:
    """Read the words of docstrings about each argument, by name: sections of Google's style."""
    own = inspect.unwrap(call)
    bases = reversed(inspect.getmro(own)[1:]) if inspect.isclass(own) else ()
    docs = map(inspect.getdoc, (*bases, own, getattr(own, "__init__", None), call))
    return {
        name: " ".join(text.split())
        for doc in docs
        for section in _ARGS.findall(f"{doc}\n")
        for name, text in _ENTRY.findall(textwrap.dedent(section))
    }


def _type(annotation: Any) -> str:
    """Write a type as Python does, with its bounds: ``int >= 1 | None``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type, parts))
    if origin is Annotated:
        bounds = ((sign, getattr(each, name, None)) for each in parts[1:] for name, sign in _BOUNDS)
        return _type(parts[0]) + ",".join(f" {sign} {n}" for sign, n in bounds if n is not None)
    if inspect.isclass(origin) and parts:
        return f"{origin.__name__}[{', '.join(map(_type, parts))}]"
    return "None" if annotation is types.NoneType else inspect.formatannotation(annotation)


def _component_of(group: str, option: str) -> Component | None:
    for component in registry.components():
        own = registry.GROUPS[component.group].option_group
        if component.name == option and (own == group or f"{group}/storage" == own):
            return component
    return None


def summaries(group: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a group, each with its first comment or first line of docstring."""
    for option in options_of(group):
        file = option_file(group, option)
        component = _component_of(group, option)
        described = (component and inspect.getdoc(component.target)) or ""
        yield option, _first_comment(file) if file else described.partition("\n")[0]


def _first_comment(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and not text.startswith("@package"):
            return text
        if text and not line.startswith("#"):
            break
    return ""


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
