"""What ``--help`` prints: groups, their options, and five examples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pipeline import registry
from pipeline.config.notation import words
from pipeline.config.places import CHOSEN_BY
from pipeline.config.signatures import Signature, signature_of
from pipeline.config.values import shown

_EXAMPLES = (
    ("", "train on a generated demo set"),
    ("dataset=lmdb loader.num_workers=8", "another storage, more workers"),
    ("dataset.storage.path=photos augment=imagenet", "your own folder of images"),
    ("-m sampler=random,weighted loader.batch_size=64,128", "a sweep: four jobs and a table"),
    ("trainer.resume=auto", "go on where the last equal run stopped"),
)
_PRESETS = {
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
    ("-sc install=bash", 'completion: eval "$(python train.py -sc install=bash)"'),
)


def print_help(composer: Any, overrides: Sequence[str], *, command: str | None = None) -> None:
    """Print the help; with choices among the overrides, what these components take."""
    program = f"python -m pipeline {command}" if command else "python train.py"
    chosen = _chosen(composer, overrides)
    if chosen:
        for target in chosen:
            _print_arguments(target)
        return
    out = [f"usage: {program} [flags] [group=option ...] [key=value ...]"]
    print("\n".join(out))
    if command is not None and registry.find(f"settings/{command}"):
        print()
        _print_arguments(f"settings/{command}", f"{command}.")
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


def _print_group(composer: Any, group: str) -> None:
    found = next((g for g in registry.GROUPS.values() if g.option_group == group), None)
    what = _PRESETS.get(group) or (found.what if found else "")
    print(f"  {group}" + (f": {what}" if what else ""))
    for option in composer.options(group):
        print(f"    {option:<18} {composer.summary(group, option)}".rstrip())


def _chosen(composer: Any, overrides: Sequence[str]) -> list[str]:
    """Targets of the components among the choices."""
    found = []
    for text in overrides:
        group, _, option = text.lstrip("+").partition("=")
        if composer.is_group(group) and option in composer.options(group):
            for candidate in registry.components():
                groups = registry.GROUPS[candidate.group]
                if candidate.name == option and (groups.option_group or groups.name) == group:
                    found.append(candidate.target_name)
    return found


def _print_arguments(target: str, prefix: str | None = None) -> None:
    """A component's arguments: key, default, type."""
    component = registry.find(target)
    signature = signature_of(target)
    assert component is not None and isinstance(signature, Signature)
    group = registry.GROUPS[component.group].option_group or component.group
    prefix = prefix if prefix is not None else f"{group.replace('/', '.')}."
    print(f"{target}: {component.summary}")
    for argument in signature.arguments.values():
        value = "(required)" if argument.required else shown(argument.default)
        accepts = "" if argument.annotation is Any else _accepts(argument.annotation)
        print(f"  {f'{prefix}{argument.name}={value}':<44} {accepts}".rstrip(), file=sys.stdout)


def _accepts(annotation: Any) -> str:
    from pipeline.config.notation import NOTHING

    return "a component" if annotation is NOTHING else words(annotation)
