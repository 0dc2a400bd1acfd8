"""The text of ``--help``: groups, their options, and five examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from penstock.core import registry
from penstock.core.user_errors import program_of
from penstock.pipeline.config.check import accepts
from penstock.pipeline.config.composition import STACK_OF, Composer
from penstock.pipeline.config.job import compose_choices
from penstock.pipeline.config.overrides import parse
from penstock.pipeline.config.places import CHOSEN_BY, PRESETS
from penstock.pipeline.config.signatures import NO_DEFAULT, signature_of
from penstock.pipeline.config.targets import family_of
from penstock.pipeline.config.values import holds_component, shown

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
    ("--help", "this; after choices (sampler=weighted --help) the arguments of the chosen"),
    ("--cfg job", "print the config and stop; --package loader prints a part of it"),
    ("-m", "run a job for every combination of values separated by commas"),
    ("--config-dir DIR", "a folder with options of your own, laid out as conf/"),
    ("-sc install=bash", f'completion: eval "$({program_of("train")} -sc install=bash)"'),
)


def print_help(composer: Composer, overrides: Sequence[str], *, command: str | None = None) -> None:
    """Print the help; with choices among the overrides, what these components take."""
    program = program_of(command or "train")
    chosen = _chosen(composer, overrides, command)
    if chosen:
        for key, node in chosen.items():
            _print_arguments(node["_target_"], f"{key}.", node)
        return
    print(f"usage: {program} [flags] [group=option ...] [key=value ...]")
    if command is not None and registry.find(f"settings/{command}"):
        print()
        _print_arguments(f"settings/{command}", f"{command}.", {})
    print("\ngroups and their options:")
    others = {group for name in CHOSEN_BY if name != command for group in CHOSEN_BY[name].values()}
    for group in sorted({*composer.groups()} - others):
        _print_group(composer, group)
    print("\nexamples:")
    width = max(len(example) for example, _ in _EXAMPLES)
    for example, what in _EXAMPLES:
        if command is None or not example.startswith(("-m", "trainer")):
            print(f"  {f'{program} {example}'.strip():<{len(program) + 1 + width}}  # {what}")
    print("\nflags:")
    for flag, what in _FLAGS:
        print(f"  {flag:<18} {what}")


def _print_group(composer: Composer, group: str) -> None:
    found = next((g for g in registry.GROUPS.values() if g.option_group == group), None)
    what = _WHAT.get(group) or (found.what if found else "")
    print(f"  {group}" + (f": {what}" if what else ""))
    for option in composer.options(group):
        print(f"    {option:<18} {composer.summary(group, option)}".rstrip())


def _chosen(composer: Composer, overrides: Sequence[str], command: str | None) -> dict[str, Any]:
    """Find the nodes of the components that the choices among the overrides compose, by key."""
    parsed = parse(overrides, composer, command=command)
    if not parsed.choices:
        return {}
    composed, _ = compose_choices(parsed, composer)
    del composed["hydra"]
    config = OmegaConf.to_container(composed, resolve=False)
    found: dict[str, Any] = {}
    for choice in parsed.choices:
        key = choice.group.partition("@")[2] or choice.group.replace("/", ".")
        if choice.group in STACK_OF and choice.options:
            key = f"{STACK_OF[choice.group]}.{choice.options[0]}"
        found.update(_components(config, "" if choice.group in PRESETS else key))
    return found


def _components(node: Any, below: str, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the components of a config at a key and below it; with the empty key, all of them."""
    if not isinstance(node, dict):
        return
    if "_target_" in node and f"{key}.".startswith(f"{below}." if below else ""):
        yield key, node
    for name, value in node.items():
        yield from _components(value, below, f"{key}.{name}" if key else str(name))


def _print_arguments(target: str, prefix: str, node: Mapping[str, Any]) -> None:
    """Print a component's arguments: key, value, type."""
    component = registry.find(target)
    if component is None and family_of(target) is None:
        return
    signature = signature_of(target)
    print(f"{target}: {component.summary}" if component is not None else target)
    if isinstance(signature, str):  # a library that is not installed
        print(f"  {signature}")
        return
    for argument in signature.arguments.values():
        value = node.get(argument.name, argument.default)
        if holds_component(value):  # which is listed itself
            continue
        text = "(required)" if value == NO_DEFAULT else shown(value)
        what = "" if argument.annotation is Any else accepts(argument)
        print(f"  {f'{prefix}{argument.name}={text}':<44} {what}".rstrip())
