"""The one pass over a plain config that finds every mistake in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core import registry
from penstock.pipeline.config.errors import Problem, listing, nearest
from penstock.pipeline.config.hints import VALUES_INSTEAD, instead_of, meant_for_another
from penstock.pipeline.config.interpolation import is_unresolved
from penstock.pipeline.config.libraries import FAMILIES, family_of, is_own
from penstock.pipeline.config.places import (
    AUGMENT,
    LIES_IN,
    PARTS,
    PARTS_OF,
    PLACES,
    REFUSED_IN_MIX,
    VALUES,
    Place,
    places_of,
    top_level_keys,
    wrong_order,
)
from penstock.pipeline.config.signatures import Signature, asks_for, names_of, signature_of
from penstock.pipeline.config.values import (
    NOTHING,
    Argument,
    given,
    holds_component,
    mistake,
    shown,
    words,
    wrong_settings,
)


def standing_beside(place: Place, signature: Signature) -> dict[str, Argument]:
    """List the settings that may stand among a component's arguments, but for its own of a name."""
    if place.beside is None:
        return {}
    found = signature_of(place.beside)
    assert isinstance(found, Signature)
    return {n: each for n, each in found.arguments.items() if n not in signature.arguments}


def accepts(argument: Argument) -> str:
    """Say what an argument accepts."""
    if argument.annotation is NOTHING:
        return "a component: a mapping with _target_"
    return "a value" if argument.annotation is Any else words(argument.annotation)


def kind_of(name: str) -> str:
    """Name a kind in words."""
    return FAMILIES[name].what if name in FAMILIES else name


def wrong_kind(target: str, kind: str, key: str, place: Place) -> str:
    """Refuse a target of the wrong kind; a torch module is a model by way of ``model=module``."""
    accepted = " or a ".join(map(kind_of, place.kinds))
    remedy = f"; type {key}=module {key}.module._target_={target}"
    is_module = kind == "torch.nn" and "model" in place.kinds
    return f"{target!r} is a {kind_of(kind)}, accepts a {accepted}{remedy if is_module else ''}"


def _names(place: Place) -> list[str]:
    """List targets that fit a place and are known without importing a library."""
    kinds = place.kinds or tuple(registry.GROUPS)
    return [c.target_name for c in registry.components() if c.group in kinds]


def how_to_choose(key: str, place: Place, given_value: Any = None) -> str:
    """Tell what to type to choose a component."""
    if place.implied:  # a source of a mix, of which the data set is chosen
        return how_to_choose(f"{key}.dataset", PARTS_OF[str(place.only)]["dataset"], given_value)
    groups = [registry.GROUPS[kind] for kind in place.kinds if kind in registry.GROUPS]
    option_groups = [group.option_group or group.name for group in groups]
    slashed = key.replace(".", "/")
    above, _, name = key.rpartition(".")
    if above in option_groups and name in options_of(above):  # `callback.ema.decay=0.9` alone
        return f"type {above}={name}"
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
    """List a group's options: files of its folder in ``conf/``, and registered components."""
    from penstock.pipeline.config.composition import CONF

    files = {file.stem for file in (CONF / group).glob("*.yaml")}
    return sorted(files | {
        component.name for component in registry.components()
        if registry.GROUPS[component.group].option_group == group
    })  # fmt: skip


def not_allowed(target: str, place: Place) -> str:
    """Tell why a target cannot be named, and what can."""
    prefixes = [f"{kind}.*" for kind in (place.kinds or FAMILIES) if kind in FAMILIES]
    fitting = [*_names(place)[:8], *prefixes]
    module = target.rpartition(".")[0]
    dotted = bool(module) and "/" not in target
    accepted = f", accepts {listing(fitting, 16)}" if place.kinds or not dotted else ""
    own = "a component of your own is registered in a module that `imports` names"
    if is_own(target):
        classes = "torch modules, optimizers, schedulers, samplers, transforms of albumentations"
        classes += " and torchvision"
        return f"{target!r} is none of the classes that are taken as they are ({classes}); {own}"
    if dotted:
        own = f"for a class of yours or of a library, type imports=[{module}] too; {own}"
    return (
        f"{target!r} is neither registered nor on the allow-list{accepted}"
        f"{near_target(target, place)}; {own}"
    )


def near_target(target: str, place: Place) -> str:
    """Name the nearest target that fits the place, as the end of an error line."""
    if (near := _of_newer_module(target, place)) is not None:
        return f"; did you mean {near}?"
    names = _names(place)
    family = family_of(target)
    if family is not None and (not place.kinds or family.name in place.kinds):
        names = names + names_of(family)
    near = nearest(target, names, cutoff=0.92)  # targets share the name of their module
    return f"; did you mean {near}?" if near is not None else ""


def _of_newer_module(target: str, place: Place) -> str | None:
    """Name what torchvision has in the place of a class of its ``transforms``, without boxes."""
    module, _, name = target.rpartition(".")
    newer = f"{module}.v2"
    return f"{newer}.{name}" if newer in FAMILIES and newer in place.kinds else None


def with_normalize(augment: dict[str, Any]) -> dict[str, Any]:
    """Normalise images where an augmentation does not say what happens on the device.

    Not where nothing is done with samples, or a step of theirs gives floats or puts the channels
    first already.
    """
    stacks = [stack for stack in map(augment.get, ("train", "eval")) if isinstance(stack, dict)]
    nodes = [node for stack in stacks for node in stack.values() if isinstance(node, dict)]
    targets = [str(node.get("_target_")) for node in nodes]
    done = any(name in text for text in targets for name in ("Normalize", "ToFloat", "ToTensor"))
    if "device" in augment or not targets or done:
        return augment
    return {**augment, "device": {"normalize": {"_target_": "batch_transform/normalize"}}}


def _without(part: str, key: str, node: Mapping[str, Any]) -> str:
    """Tell what to do with a storage or source that a data set does not take."""
    if node.get("sources"):
        source = next(iter(node["sources"]))
        return f"its sources have their own; type {key}.sources.{source}.dataset.{part}.path=..."
    return f"leave it away, or type {key}={'stream' if part == 'source' else 'image_folder'}"


_ANYWHERE = Place(kinds=())


def check(
    config: dict[str, Any],
    *,
    skip: frozenset[str] = frozenset(),
    variables: frozenset[str] = frozenset(),
    typed: frozenset[str] = frozenset(),
    command: str | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """Compare a config with the signatures of everything it names.

    Args:
        config: A plain config, resolved.
        skip: Keys below which nothing is looked at, since they have been reported already.
        variables: Keys that interpolations refer to: values may stand there, at the top and in
            `augment`, where no component takes them.
        typed: Keys that the user gave, rather than a file.
        command: The command whose settings stand under its name.

    Returns:
        The config with the defaults of registered components filled in, and all mistakes.
    """
    walk = _Walk(config, skip, variables, typed)
    places = places_of(command)
    known = sorted({*top_level_keys(), *places})
    checked: dict[str, Any] = {}
    for key, value in config.items():
        if key in skip:
            checked[key] = value
        elif key in places:
            checked[key] = walk.place(value, key, places[key])
        elif key in VALUES:
            walk.value(Argument(key, VALUES[key], "???"), value, key)
            checked[key] = value
        elif key == "augment":
            checked[key] = walk.augment(value)
        elif walk.is_variable(key, value):
            checked[key] = value
        else:
            near = known + [f"{command}.{name}" for name in config.get(command or "", ())]
            for place, given_there in _as_typed(str(key), value, typed):
                walk.unknown(
                    place, given_there, near, "the keys at the top are " + listing(known, 20)
                )
    for key in sorted({*known} - {*config} - skip):
        walk.absent(key, places, checked)
    order = [*config, *(key for key in checked if key not in config)]
    return {key: checked[key] for key in order if key in checked}, walk.problems


def _as_typed(key: str, value: Any, typed: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield what was typed below a key that nothing takes: each is known by its own name."""
    below = sorted(each for each in typed if each.startswith(f"{key}."))
    if not below:
        yield key, value
    for each in below:
        found = value
        for name in each.split(".")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        yield each, found


@dataclass(slots=True)
class _Walk:
    """Goes through a config and collects what is wrong."""

    config: dict[str, Any]
    skip: frozenset[str]
    variables: frozenset[str]
    typed: frozenset[str]
    problems: list[Problem] = field(default_factory=list)

    def report(self, key: str, message: str) -> None:
        if key not in self.skip:
            self.problems.append(Problem(key, message))

    def is_variable(self, key: str, value: Any) -> bool:
        """Tell whether a value stands there for interpolations to refer to."""
        return key in self.variables and not holds_component(value)

    def absent(self, key: str, places: Mapping[str, Place], checked: dict[str, Any]) -> None:
        """A key at the top that the config lacks: null where that is accepted."""
        if key == "imports":
            checked[key] = []
        elif key == "augment":
            checked[key] = self.augment({})
        elif key in places and places[key].nullable:
            checked[key] = self.place(None, key, places[key])
        else:
            how = how_to_choose(key, places[key]) if key in places else f"type {key}=..."
            self.report(key, f"missing; {how}")

    def unknown(self, key: str, value: Any, known: list[str], accepted: str) -> None:
        """A key that nothing takes."""
        text = None if isinstance(value, dict) else shown(value)
        typed = any(f"{each}.".startswith(f"{key}.") for each in self.typed)
        remedy = instead_of(key, text, known, self.config, typed=typed)
        what = "" if text is None else f"{given(value)} given, "
        self.report(key, f"{what}unknown key; {accepted}; {remedy}")

    def value(self, argument: Argument, value: Any, key: str) -> None:
        """One value of one argument."""
        if key in self.skip or is_unresolved(value):
            return
        if isinstance(value, str) and value == "???":
            self.report(key, f"missing, accepts {accepts(argument)}; type {key}=...")
            return
        wrong = mistake(argument, value, key)
        if wrong is not None:
            meant = VALUES_INSTEAD.get(f"{key}={shown(value)}")
            self.report(key, f"{given(value)} given; {meant}" if meant else wrong)

    def augment(self, value: Any) -> dict[str, Any]:
        """The three stacks, and what they do with targets."""
        if not isinstance(value, dict):
            self.report("augment", f"{given(value)} given; type augment=none or augment=light")
            return {}
        value = with_normalize(value)
        variables = {name: value[name] for name in value if name not in AUGMENT}
        for name, variable in variables.items():
            # A file's own variable stays one when the steps that refer to it are taken away.
            of_file = f"augment.{name}" not in self.typed and not holds_component(variable)
            if not of_file and not self.is_variable(f"augment.{name}", variable):
                known = [f"augment.{part}" for part in AUGMENT]
                self.unknown(f"augment.{name}", variable, known, f"accepts {listing(AUGMENT)}")
        parts = {
            name: self.place(value.get(name), f"augment.{name}", place)
            for name, place in AUGMENT.items()
        }
        return {**variables, **parts}

    def place(self, value: Any, key: str, place: Place) -> Any:
        """What stands at a place: a component, or several by name."""
        return (self.mapping if place.named else self.component)(value, key, place)

    def mapping(self, value: Any, key: str, place: Place) -> dict[str, Any]:
        """Components by name, such as the steps of a stack."""
        if value is None or key in self.skip:
            return {}
        if not isinstance(value, dict):
            what = "steps by name" if place.step else "components by name"
            how = "dataset=<option>" if place.implied else "_target_=..."
            there = "missing" if value == "???" else f"{given(value)} given"
            self.report(key, f"{there}, accepts {what}; type {key}.<name>.{how}")
            return {}
        if "_target_" in value:
            self.report(
                key, f"a component stands here, accepts components by name; type "
                f"{key}.<name>._target_={value['_target_']}"
            )  # fmt: skip
            return {}
        if place.step:
            self.problems += wrong_order(value, key)
        checked = {}
        for name, node in value.items():
            full = f"{key}.{name}"
            if place.implied and meant_for_another(name, value):
                others = [other for other in value if other != name]
                new = f"or another with a data set: {full}.dataset=<option>"
                accepted = f"accepts {listing(others)}, {new}"
                self.unknown(full, {}, [f"{key}.{other}" for other in others], accepted)
                continue
            checked[name] = self.component(node, full, place)
        return checked

    def component(self, node: Any, key: str, place: Place) -> Any:
        """A component: its target, then its arguments."""
        if key in self.skip or (node is None and place.nullable):
            return None
        if node is None or (isinstance(node, str) and node == "???"):
            self.report(key, f"missing; {how_to_choose(key, place)}")
            return None
        if not isinstance(node, dict):
            what = "a mapping of its own" if place.implied else "a component"
            how = how_to_choose(key, place, node)
            self.report(key, f"{given(node)} given, accepts {what}; {how}")
            return None
        signature = self._signature(node, key, place)
        return node if signature is None else self._arguments(node, key, place, signature)

    def _signature(self, node: dict[str, Any], key: str, place: Place) -> Signature | None:
        target = node.get("_target_", place.only if place.implied else None)
        where = f"{key}._target_"
        if target is None or target == "???":
            self.report(key, f"missing; {how_to_choose(key, place)}")
            return None
        if not isinstance(target, str):
            self.report(where, f"{given(target)} given, accepts group/name or a dotted path")
            return None
        if registry.find(target) is None and family_of(target) is None:
            self.report(where, not_allowed(target, place))
            return None
        signature = signature_of(target)
        if isinstance(signature, str):
            self.report(where, f"{signature.removeprefix(f'_target_ {target!r} ')}"
                        f"{near_target(target, place)}")  # fmt: skip
            return None
        if place.only is not None and target != place.only:
            self.report(where, f"{target!r} given, accepts {place.only} alone")
            return None
        if place.kinds and signature.kind not in place.kinds:
            self.report(where, wrong_kind(target, signature.kind, key, place))
            return None
        return signature

    def _arguments(
        self, node: dict[str, Any], key: str, place: Place, signature: Signature
    ) -> dict[str, Any]:
        checked: dict[str, Any] = {"_target_": signature.target}
        before = len(self.problems)
        parts = PARTS | PARTS_OF.get(signature.target, {})
        beside = standing_beside(place, signature)
        for name, value in node.items():
            full = f"{key}.{name}"
            if name == "_target_":
                continue
            if name == "_after_" and place.step:
                checked[name] = value
            elif name in LIES_IN and asks_for(signature, name) is False:
                self.report(full, f"{signature.target} takes no {name}; "
                            f"{_without(name, key, node)}")  # fmt: skip
            elif name == "_args_" and signature.takes_positional:
                checked[name] = self._nested(value, full)
            elif name in parts and (name in signature.arguments or name in signature.injected):
                checked[name] = self.place(value, full, parts[name])
            elif name in signature.injected:
                self.report(full, f"{given(value)} given, but it is known at run time alone and "
                            f"cannot be configured; leave it away")  # fmt: skip
            elif name in signature.arguments:
                checked[name] = self._argument(signature.arguments[name], value, full)
            elif name in beside:
                checked[name] = self._argument(beside[name], value, full)
            elif signature.takes_any:
                checked[name] = self._nested(value, full)
            else:
                names = [*signature.arguments, *beside]
                known = [f"{key}.{argument}" for argument in names]
                accepts = listing(names, 16) or "no arguments"
                self.unknown(full, value, known, f"{signature.target} accepts {accepts}")
        self._fill(checked, node, key, signature, place.given)
        if len(self.problems) == before:
            if signature.kind == "settings":
                self.problems += wrong_settings(checked, key, signature.target)
            if given_beside := {name: checked[name] for name in beside if name in checked}:
                self.problems += wrong_settings(given_beside, key, str(place.beside))
        return checked

    def _argument(self, argument: Argument, value: Any, key: str) -> Any:
        """A value, which may be a component or hold some."""
        if holds_component(value):
            return self._nested(value, key)
        self.value(argument, value, key)
        return value

    def _nested(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            if "_target_" in value:
                return self.component(value, key, _ANYWHERE)
            return {name: self._nested(item, f"{key}.{name}") for name, item in value.items()}
        if isinstance(value, list):
            return [self._nested(item, f"{key}.{i}") for i, item in enumerate(value)]
        return value

    def _fill(
        self,
        checked: dict[str, Any],
        node: dict[str, Any],
        key: str,
        signature: Signature,
        known: Collection[str],
    ) -> None:
        """Report what is required and missing, and write out what registered targets default to."""
        ours = registry.find(signature.target) is not None
        for argument in signature.arguments.values():
            full = f"{key}.{argument.name}"
            if argument.name in {*node, *known} or full in self.skip:
                continue
            own = PARTS_OF.get(signature.target, {}).get(argument.name)
            if argument.required and own is not None:
                self.place("???", full, own)
            elif argument.required and "_args_" not in node:
                self.value(argument, "???", full)
            elif ours:
                checked[argument.name] = argument.default
        for part in LIES_IN:
            if part not in node and asks_for(signature, part):
                self.component("???", f"{key}.{part}", PARTS[part])
