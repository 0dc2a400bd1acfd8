"""How the check words what a place accepts and what to type there."""

from __future__ import annotations

from typing import Any

from pipeline import registry
from pipeline.config.allowed import FAMILIES, family_of
from pipeline.config.errors import listing, nearest
from pipeline.config.notation import NOTHING, words
from pipeline.config.places import PARTS_OF, PLACES, REFUSED_IN_MIX, Place
from pipeline.config.signatures import Argument


def accepts(argument: Argument) -> str:
    """What an argument accepts."""
    if argument.annotation is NOTHING:
        return "a component: a mapping with _target_"
    return "a value" if argument.annotation is Any else words(argument.annotation)


def kind_of(name: str) -> str:
    """A kind in words."""
    return FAMILIES[name].what if name in FAMILIES else name


def wrong_kind(target: str, kind: str, key: str, place: Place) -> str:
    """A target of the wrong kind; a torch module is a model by way of ``model=module``."""
    accepted = " or a ".join(map(kind_of, place.kinds))
    remedy = f"; type {key}=module {key}.module._target_={target}"
    is_module = kind == "torch.nn" and "model" in place.kinds
    return f"{target!r} is a {kind_of(kind)}, accepts a {accepted}{remedy if is_module else ''}"


def _names(place: Place) -> list[str]:
    """Targets that fit a place and are known without importing a library."""
    kinds = place.kinds or tuple(registry.GROUPS)
    return [c.target_name for c in registry.components() if c.group in kinds]


def how_to_choose(key: str, place: Place, given_value: Any = None) -> str:
    """What to type to choose a component."""
    if place.implied:  # a source of a mix, of which the data set is chosen
        return how_to_choose(f"{key}.dataset", PARTS_OF[str(place.only)]["dataset"], given_value)
    groups = [registry.GROUPS[kind] for kind in place.kinds if kind in registry.GROUPS]
    option_groups = [group.option_group or group.name for group in groups]
    slashed = key.replace(".", "/")
    of_source = key.startswith("dataset.sources.") and key.count(".") > 2
    names = _names(place)
    if slashed in option_groups or key in PLACES or of_source:
        names = options_of(option_groups[0] if of_source else slashed)
        if of_source:
            names = [name for name in names if name not in REFUSED_IN_MIX]
        near = nearest(str(given_value), names) if given_value is not None else None
        typed = key if of_source else slashed
        return f"type {typed}={near or '<option>'} (options: {listing(names, 20) or 'none'})"
    example = f"type {key}._target_=<{' or '.join(map(kind_of, place.kinds)) or 'target'}>"
    return f"{example} ({listing(names)})" if names else example


def options_of(group: str) -> list[str]:
    """Options of a group: the files of its folder in ``conf/``, and registered components."""
    from pipeline.config.composition import CONF

    files = {file.stem for file in (CONF / group).glob("*.yaml")}
    return sorted(files | {
        component.name for component in registry.components()
        if registry.GROUPS[component.group].option_group == group
    })  # fmt: skip


def not_allowed(target: str, place: Place) -> str:
    """Why a target cannot be named, and what can."""
    prefixes = [f"{kind}.*" for kind in (place.kinds or FAMILIES) if kind in FAMILIES]
    fitting = [*_names(place)[:8], *prefixes]
    return (
        f"{target!r} is neither registered nor on the allow-list, accepts {listing(fitting, 16)}"
        f"{near_target(target, place)}; a component of your own is registered in a module "
        f"that `imports` names"
    )


def near_target(target: str, place: Place) -> str:
    """The nearest target that fits the place, as the end of an error line."""
    from pipeline.config.library import names_of

    names = _names(place)
    family = family_of(target)
    if family is not None and (not place.kinds or family.name in place.kinds):
        names = names + names_of(family)
    near = nearest(target, names)
    return f"; did you mean {near}?" if near is not None else ""
