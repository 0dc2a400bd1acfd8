"""The text of ``--help``: groups and options, the arguments of what is chosen, examples.

What it prints is read by `what_is`, `components_of` and `arguments_of`; pages of options, made by
``docs/groups.py``, have it from there too.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from penstock.core import registry
from penstock.core.user_errors import program_of
from penstock.pipeline.config.check import accepts, standing_beside
from penstock.pipeline.config.composition import STACK_OF, Composer
from penstock.pipeline.config.errors import ConfigError, Problem, listing, nearest
from penstock.pipeline.config.libraries import family_of
from penstock.pipeline.config.overrides import compose_choices, parse
from penstock.pipeline.config.places import CHOSEN_BY, PARTS_OF, PLACES, PRESETS
from penstock.pipeline.config.signatures import signature_of
from penstock.pipeline.config.values import NO_DEFAULT, holds_component, shown

_EXAMPLES = (
    ("", "train on a generated demo set"),
    ("dataset=lmdb loader.num_workers=8", "another storage, more workers"),
    ("dataset.storage.path=photos augment=imagenet", "your own folder of images"),
    ("-m sampler=random,weighted loader.batch_size=64,128", "a sweep: four jobs and a table"),
    ("trainer.resume=auto", "go on where the last equal run stopped"),
)
_WHAT = {
    "experiment": "several choices and values under one name",
    "debug": "small and quick, to look for mistakes",
    "augment": "stacks of named steps: train, eval, device",
    "dataset": "what the data is: its type, storage and decoding",
    "loader": "who computes batches, and how many at once",
    "trainer": "how long, how precisely, and what is kept",
    "transform": "changes one sample; transform=NAME adds it as a last step to augment.train",
    "batch_transform": "changes a batch; batch_transform=NAME adds it last to augment.device",
}
_FLAGS = (
    ("--help", "this; the arguments of a group (--help loader), of choices (dataset=lmdb --help)"),
    ("--cfg job", "print the config and stop; --package loader prints a part of it"),
    ("-m", "run a job for every combination of values separated by commas"),
    ("--config-dir DIR", "a folder with options of your own, laid out as conf/"),
    ("-sc install=bash", f'completion: eval "$({program_of("train")} -sc install=bash)"'),
)


@dataclass(frozen=True, slots=True)
class ArgumentHelp:
    """What is said of an argument.

    Attributes:
        key: As it is typed.
        value: What it is where nothing is typed; ``(required)`` if there is no such thing.
        accepted: What may be given, in words; empty where anything may.
        what: What its docstring says.
    """

    key: str
    value: str
    accepted: str
    what: str


def print_help(composer: Composer, typed: Sequence[str], *, command: str | None = None) -> None:
    """Print the help: of all, of the groups that are named, or of what overrides choose.

    Raises:
        ConfigError: A group is named that there is not.
    """
    overrides = [text for text in typed if "=" in text or text.startswith("~")]
    others = {group for name in CHOSEN_BY if name != command for group in CHOSEN_BY[name].values()}
    groups = sorted({*composer.groups()} - others)
    asked = [text.replace(".", "/") for text in typed if text not in overrides]
    if wrong := [name for name in asked if name not in groups]:
        raise ConfigError(_no_group(name, groups, composer) for name in wrong)
    chosen = _chosen(composer, overrides, command)
    for group in asked:
        _print_group(composer, group)
        known = {node["_target_"] for _, node in chosen}
        for option in composer.options(group):
            for key, node in components_of(composer, group, option):
                if node["_target_"] not in known:  # which another option has shown
                    chosen.append((key, node))
                    known.add(node["_target_"])
    for number, (key, node) in enumerate(chosen):
        if number or asked:
            print()
        _print_arguments(composer, node["_target_"], f"{key}.", node)
    if asked or chosen:
        return
    program = program_of(command or "train")
    print(f"usage: {program} [flags] [group=option ...] [key=value ...]")
    if command is not None and registry.find(f"settings/{command}"):
        print()
        _print_arguments(composer, f"settings/{command}", f"{command}.", {})
    print("\ngroups and their options:")
    for group in groups:
        _print_group(composer, group)
    print("\nexamples:")
    for example, what in _EXAMPLES:
        if command is None or not example.startswith(("-m", "trainer")):
            _entry(f"  {program} {example}".rstrip(), "", 0)
            _entry("", what, 6)
    print("\nflags:")
    for flag, what in _FLAGS:
        _entry(f"  {flag}", what, 21)


def _entry(head: str, text: str, column: int) -> None:
    """Print words beside a head, from a column on, or below a head that is as long."""
    lines = textwrap.wrap(
        text.replace("``", "`"), shutil.get_terminal_size().columns, initial_indent=" " * column,
        subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    if lines and len(head) < column:
        lines[0] = head + lines[0][len(head) :]
    elif head:
        lines.insert(0, head)
    print(*lines, sep="\n")


def _print_group(composer: Composer, group: str) -> None:
    what = what_is(group)
    _entry("", f"{group}: {what}" if what else group, 2)
    for option in composer.options(group):
        _entry(f"    {option}", composer.summary(group, option), 23)


def _no_group(name: str, groups: Sequence[str], composer: Composer) -> Problem:
    having = (f"{group}={name}" for group in groups if name in composer.options(group))
    near = nearest(name, groups) or next(having, None)
    remedy = f"; type {near} --help" if near else ""
    return Problem("--help", f"no group {name!r}, the groups are {listing(groups, 30)}{remedy}")


def what_is(group: str) -> str:
    """Say in a line what the options of a group are."""
    found = next((g for g in registry.GROUPS.values() if g.option_group == group), None)
    return _WHAT.get(group) or (found.what if found else "")


def components_of(
    composer: Composer, group: str, option: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the components of an option: keys and nodes; not the steps inside of a preset."""
    for key, node in _components(composer.option(group, option), ""):
        if key.count(".") == 0:
            above, _, own = group.rpartition("/")  # one may set what stands beside it, too
            below = STACK_OF.get(group, group) if key != own else above
            below = below.replace("/", ".")
            place = ".".join(filter(None, (below, key)))
            yield place, node
            for name, part in PARTS_OF.get(node["_target_"], {}).items():
                if part.only is not None:  # what each of them takes, under a name of the user's
                    yield f"{place}.{name}.NAME", {"_target_": part.only}


def _chosen(
    composer: Composer, overrides: Sequence[str], command: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """Find the components that the choices among the overrides compose: keys and nodes."""
    parsed = parse(overrides, composer, command=command)
    if not parsed.choices:
        return []
    composed, _ = compose_choices(parsed, composer)
    del composed["hydra"]
    config = OmegaConf.to_container(composed, resolve=False)
    found: dict[str, Any] = {}
    for choice in parsed.choices:
        key = choice.group.partition("@")[2] or choice.group.replace("/", ".")
        if choice.group in STACK_OF and choice.options:
            key = f"{STACK_OF[choice.group]}.{choice.options[0]}"
        found.update(_components(config, "" if choice.group in PRESETS else key))
    return list(found.items())


def _components(node: Any, below: str, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the components of a config at a key and below it; with the empty key, all of them."""
    if not isinstance(node, dict):
        return
    if "_target_" in node and f"{key}.".startswith(f"{below}." if below else ""):
        yield key, node
    for name, value in node.items():
        yield from _components(value, below, f"{key}.{name}" if key else str(name))


def arguments_of(
    composer: Composer, target: str, prefix: str, node: Mapping[str, Any]
) -> list[ArgumentHelp] | str:
    """Describe the arguments of a component; or say why not: a library is not installed.

    Args:
        composer: Knows the groups.
        target: A registered component, or a class of a library.
        prefix: What stands before their names, with the dot.
        node: What an option sets them to.
    """
    signature = signature_of(target)
    if isinstance(signature, str):
        return signature
    place = prefix[:-1]
    beside = standing_beside(PLACES[place], signature) if place in PLACES else {}
    found = []
    for argument in [*signature.arguments.values(), *beside.values()]:
        value = node.get(argument.name, argument.default)
        if holds_component(value):  # which is listed itself
            continue
        key = f"{prefix}{argument.name}"
        accepted = "" if argument.annotation is Any else accepts(argument)
        if composer.is_group(group := key.replace(".", "/")):
            accepted = f"{group}={' or '.join(composer.options(group))}"
        text = "(required)" if value == NO_DEFAULT else shown(value)
        what = re.sub(r"\bNone\b", "null", argument.what).replace("``", "`")
        found.append(ArgumentHelp(key, text, accepted, what))
    return found


def _print_arguments(composer: Composer, target: str, prefix: str, node: Mapping[str, Any]) -> None:
    """Print a component's arguments: key, value, type, and what its docstring says of them."""
    component = registry.find(target)
    if component is None and family_of(target) is None:
        return
    _entry("", f"{target}: {component.summary}" if component is not None else target, 0)
    arguments = arguments_of(composer, target, prefix, node)
    if isinstance(arguments, str):
        _entry("", arguments, 2)
        return
    for argument in arguments:
        head = f"  {argument.key}={argument.value}"
        _entry(head, argument.accepted, shutil.get_terminal_size().columns // 2)
        _entry("", argument.what, 6)
