"""The text of ``--help``: groups, options, arguments, examples and flags.

The pages of options read `group_summary`, `components_of` and `described` too.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from yaml import safe_load

from penstock.core import registry
from penstock.core.user_errors import Problem, listing, nearest, program_of
from penstock.pipeline.config import values
from penstock.pipeline.config.compose import choose, prepare, settings_of
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.libraries import family_of, resolve_target
from penstock.pipeline.config.options import STACK_OF, groups, option_file, options_of, summaries
from penstock.pipeline.config.overrides import read_overrides
from penstock.pipeline.config.places import CHOSEN_BY, PARTS_OF, PLACES, PRESETS
from penstock.pipeline.config.schema import beside
from penstock.pipeline.config.values import REQUIRED, Argument, arguments_of

_EXAMPLES = {
    "": "train on a generated demo set",
    "dataset=lmdb loader.num_workers=8": "another storage, more workers",
    "dataset.storage.path=photos augment=imagenet": "your own folder of images",
    "-m sampler=random,weighted loader.batch_size=64,128": "a sweep: four jobs and a table",
    "trainer.resume=auto": "resume the last equal run",
}
_GROUPS = {
    "experiment": "several choices and values under one name",
    "debug": "small and quick runs that find mistakes",
    "augment": "stacks of named steps: train, eval, device",
    "dataset": "the data: its type, storage and decoding",
    "trainer": "the length and precision of training, and its checkpoints",
    "transform": "changes one sample; transform=NAME adds it as a last step to augment.train",
    "batch_transform": "changes a batch; batch_transform=NAME adds it last to augment.device",
}
_FLAGS = {
    "--help": "this; arguments of a group (--help loader), of choices (dataset=lmdb --help)",
    "--cfg job": "print the config and stop; --package loader prints a part of it",
    "-m": "run a job for every combination of values separated by commas",
    "--config-dir DIR": "a folder with options of your own, laid out as conf/",
    "-sc install=bash": f'completion: eval "$({program_of("train")} -sc install=bash)"',
}
_SECTION = re.compile(r"^(?:Args|Arguments|Attributes):\n((?:[ ].*\n|\n)*)", re.M)
_ENTRY = re.compile(r"^(\w+)(?: *\(.*?\))?:(.*\n(?:[ ].*\n|\n)*)", re.M)
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


class Described(NamedTuple):
    """The help on an argument: its full key, value or ``(required)``, type and docstring."""

    key: str
    value: str
    accepted: str
    what: str


def print_help(overrides: Sequence[str], command: str | None = None) -> None:
    """Print the help on everything, on the named groups, or on the chosen options.

    Raises:
        ConfigError: A named group does not exist, or an override is wrong.
    """
    prepare(overrides)
    others = {group for name in CHOSEN_BY if name != command for group in CHOSEN_BY[name].values()}
    known = [group for group in groups() if group not in others]
    choices = [text for text in overrides if "=" in text or text.startswith("~")]
    asked = [text.replace(".", "/") for text in overrides if text not in choices]
    if wrong := next((name for name in asked if name not in known), None):
        having = [f"{group}={wrong}" for group in known if wrong in options_of(group)]
        near = nearest(wrong, known) or "".join(having[:1])
        remedy = f"; type {near} --help" if near else ""
        text = f"no group {wrong!r}, the groups are {listing(known, 30)}{remedy}"
        raise ConfigError([Problem("--help", text)])
    nodes = _chosen(choices, command)
    targets = {node["_target_"] for _, node in nodes}
    for group in asked:
        _print_group(group)
        for option in options_of(group):
            for key, node in components_of(group, option):
                if node["_target_"] not in targets:
                    nodes.append((key, node))
                    targets.add(node["_target_"])
    for number, (key, node) in enumerate(nodes):
        print(end="\n" if number or asked else "")
        _print_component(node["_target_"], f"{key}.", node)
    if not asked and not nodes:
        _print_everything(known, command)


def _print_everything(known: Sequence[str], command: str | None) -> None:
    program = program_of(command or "train")
    print(f"usage: {program} [flags] [group=option ...] [key=value ...]")
    if command is not None and settings_of(command):
        print()
        _print_component(f"settings/{command}", f"{command}.", {})
    print("\ngroups and their options:")
    for group in known:
        _print_group(group)
    print("\nexamples:")
    for example, what in _EXAMPLES.items():
        if command is None or not example.startswith(("-m", "trainer")):
            _print_entry(f"  {program} {example}".rstrip(), "", 0)
            _print_entry("", what, 6)
    print("\nflags:")
    for flag, what in _FLAGS.items():
        _print_entry(f"  {flag}", what, 21)


def _print_entry(head: str, text: str, column: int) -> None:
    """Print words from a column on, beside a shorter head or below a longer one."""
    lines = textwrap.wrap(
        text.replace("``", "`"), shutil.get_terminal_size().columns, initial_indent=" " * column,
        subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    if lines and len(head) < column:
        lines[0] = head + lines[0][len(head) :]
    elif head:
        lines.insert(0, head)
    print(*lines, sep="\n")


def _print_group(group: str) -> None:
    _print_entry("", f"{group}: {group_summary(group)}", 2)
    for option, summary in summaries(group):
        _print_entry(f"    {option}", summary, 23)


def group_summary(group: str) -> str:
    """Return a line about the options of a group."""
    found = (each.what for each in registry.GROUPS.values() if each.option_group == group)
    return _GROUPS.get(group) or next(found, "")


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
                if part.only is not None:
                    yield f"{place}.{name}.NAME", {"_target_": part.only}


def _chosen(choices: Sequence[str], command: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Compose the chosen options; return the keys and nodes of their components."""
    settings = tuple(settings_of(command))[1:]
    typed, problems = read_overrides(choices, command=command, settings=settings)
    typed = [each for each in typed if each.group]
    config = OmegaConf.to_container(choose(typed, problems)[0]) if typed else {}
    if problems:
        raise ConfigError(problems)
    found: dict[str, dict[str, Any]] = {}
    for each in typed:
        below = "" if each.group in PRESETS else STACK_OF.get(each.group, each.key)
        names = each.options if each.group in STACK_OF else [""]
        places = [f"{below}.{name}".strip(".") for name in names]
        for key, node in _components(config):
            if any(f"{key}.".startswith(f"{place}." if place else "") for place in places):
                found[key] = node
    return list(found.items())


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
        arguments = {
            each.name: Argument(each.name, values.annotation_of(call, each), each.default)
            for each in registry.parameters(call, family.injected if family else frozenset())
        }
    if place is not None and place.beside is not None:
        arguments = arguments | beside(place, arguments)
        what = _documented(resolve_target(place.beside)) | what
    for name, argument in arguments.items():
        key, value = f"{prefix}{name}", node.get(name, argument.default)
        if not values.holds_component(value):  # a component is described at its own key
            options = options_of(group := key.replace(".", "/"))
            accepted = f"{group}={' or '.join(options)}" if options else _type(argument.annotation)
            text = values.shown(value)
            text = "(required)" if text in (REQUIRED, str(inspect.Parameter.empty)) else text
            said = re.sub(r"\bNone\b", "null", what.get(name, "")).replace("``", "`")
            yield Described(key, text, accepted, said)


def _documented(call: Callable[..., Any]) -> dict[str, str]:
    """Read the words of docstrings about each argument, by name: sections of Google's style."""
    own = inspect.unwrap(call)
    docs = map(inspect.getdoc, (own, getattr(own, "__init__", None), call))
    return {
        name: " ".join(text.split())
        for doc in docs
        for section in _SECTION.findall(f"{doc}\n")
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


def _print_component(target: str, prefix: str, node: Mapping[str, Any]) -> None:
    """Print a component's arguments: key, value, type and docstring."""
    component = registry.find(target)
    _print_entry("", f"{target}: {component.summary}" if component is not None else target, 0)
    try:
        for argument in described(target, prefix, node):
            head = f"  {argument.key}={argument.value}"
            _print_entry(head, argument.accepted, shutil.get_terminal_size().columns // 2)
            _print_entry("", argument.what, 6)
    except (ValueError, ImportError) as error:
        _print_entry("", str(error), 2)
