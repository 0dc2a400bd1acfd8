"""The one pass over a plain config that checks each component against its signature."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core import registry
from penstock.core.registry import value_at
from penstock.core.user_errors import Problem, listing, nearest
from penstock.pipeline.config import libraries, places, values
from penstock.pipeline.config.errors import ConfigError, is_below
from penstock.pipeline.config.hints import INSTEAD, instead_of
from penstock.pipeline.config.options import options_of
from penstock.pipeline.config.places import Place
from penstock.pipeline.config.values import REQUIRED, Argument, given, holds_component, shown

UNKNOWN = "unknown key"


def check(
    config: dict[str, Any],
    *,
    skip: frozenset[str] = frozenset(),
    variables: frozenset[str] = frozenset(),
    typed: frozenset[str] = frozenset(),
    command: str | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """Compare a config with the signatures of all registered components that it names.

    Classes of libraries are checked when the config is used; see `check_libraries`.

    Args:
        config: A plain config, resolved.
        skip: Keys that have been reported already; nothing below them is checked.
        variables: Keys that interpolations refer to; they may have any value, at the top and in
            `augment`.
        typed: Keys that the user gave, rather than a file.
        command: The command whose settings stand under its name.

    Returns:
        The config with the defaults of registered components filled in, and all problems.
    """
    walk = _Walk(config, skip, variables, typed)
    return walk.fields(config, "", places.VALUES, places.places_of(command)), walk.problems


def check_libraries(config: Mapping[str, Any]) -> list[Problem]:
    """Compare the arguments of every library class in a plain config with its signature."""
    walk = _Walk({**config}, loads=True)
    walk.libraries(config, "")
    return walk.problems


def refuse_library_mistakes(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` with all problems that `check_libraries` finds."""
    if problems := check_libraries(config):
        raise ConfigError(problems)


def beside(place: Place, arguments: Collection[str]) -> dict[str, Argument]:
    """List the settings that may be mixed with the arguments of a component."""
    found = values.arguments_of(place.beside) if place.beside is not None else {}
    return {name: each for name, each in found.items() if name not in arguments}


def _targets(place: Place) -> list[str]:
    """List the registered components that fit a place."""
    kinds = place.kinds or tuple(registry.GROUPS)
    return [c.target_name for c in registry.components() if {c.group, c.target_name} & {*kinds}]


def _how_to_choose(key: str, place: Place, value: Any = None) -> str:
    """Return what to type to choose a component."""
    if place.implied and place.named:  # a source of a mix: the user chooses its data set
        return _how_to_choose(f"{key}.dataset", Place(("dataset",)), value)
    if place.implied:
        return f"type {key}.{next(iter(values.arguments_of(place.kinds[0])))}=..."
    above, _, name = key.rpartition(".")
    if place.named and name in options_of(above):  # `callback.ema.decay=0.9` alone
        return f"type {above}={name}"
    of_source = key.startswith("dataset.sources.")
    group = (key.split(".", 3)[-1] if of_source else key).replace(".", "/")
    refused = ("mix", "stream") if of_source else ()
    if names := [name for name in options_of(group) if name not in refused]:
        near = nearest(str(value), names) if value is not None else None
        typed = key if of_source else group
        return f"type {typed}={near or '<option>'} (options: {listing(names, 20)})"
    return f"type {key}._target_=<target> ({_fitting(place)})"


def _fitting(place: Place) -> str:
    """List the registered components and the libraries that fit a place."""
    families = [f"{kind}.*" for kind in place.kinds if kind in libraries.FAMILIES]
    return listing([*_targets(place)[:8], *families], 16) or "of a library"


@dataclass(slots=True)
class _Walk:
    """Goes through a config and collects the problems."""

    config: dict[str, Any]
    skip: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    typed: frozenset[str] = frozenset()
    loads: bool = False
    problems: list[Problem] = field(default_factory=list)

    def report(self, key: str, message: str) -> None:
        if key not in self.skip:
            self.problems.append(Problem(key, message))

    def is_variable(self, key: str, value: Any) -> bool:
        above = key.rpartition(".")[0]
        referred = key in self.variables or (above == "augment" and key not in self.typed)
        return referred and above in ("", "augment") and not holds_component(value)

    def unknown(self, key: str, above: str, known: Iterable[str]) -> None:
        value = value_at(self.config, key)
        text = None if isinstance(value, dict) else shown(value)
        typed = self.loads or any(is_below(each, [key]) for each in self.typed)
        remedy = instead_of(key, text, known, self.config, typed=typed)
        if self.loads:  # what was typed is not known here
            remedy += f"; type ~{key} if a file has it"
        quoted = "" if text is None else f"{given(value)} given, "
        what = value_at(self.config, f"{above}._target_") or above or "the config"
        names = listing([each.rpartition(".")[2] for each in known], 20) or "nothing"
        said = f"{UNKNOWN}; {what} takes no {key.rpartition('.')[2]}; it accepts {names}"
        self.report(key, f"{quoted}{said}; {remedy}")

    def value(self, argument: Argument, value: Any, key: str) -> None:
        if any(is_below(each, [key]) for each in self.skip):
            return
        if value == REQUIRED:
            self.report(key, f"missing; type {key}=...")
        elif (wrong := values.mistake(argument, value, key)) is not None:
            meant = INSTEAD.get(f"{key}={shown(value)}")
            self.report(key, f"{given(value)} given; {meant}" if meant else wrong)

    def place(self, value: Any, key: str, place: Place) -> Any:
        if key == "augment" and isinstance(value, dict):
            return self.fields(value, key, {}, places.AUGMENT)
        return (self.mapping if place.named else self.component)(value, key, place)

    def mapping(self, value: Any, key: str, place: Place) -> dict[str, Any]:
        """Check components by name, such as the steps of a stack."""
        if value is None or key in self.skip:
            return {}
        if not isinstance(value, dict) or "_target_" in value:
            how = "dataset=<option>" if place.implied else "_target_=..."
            what = f"{given(value)} given, expected components by name"
            self.report(key, f"{what}; type {key}.<name>.{how}")
            return {}
        if key in places.STEPS:
            self.problems += places.wrong_order(value, key)
        chosen = [n for n, node in value.items() if _is_chosen(node, place)]
        checked = {}
        for name, node in value.items():
            full = f"{key}.{name}"
            near = nearest(name, chosen) if isinstance(node, dict) else None
            if near and name not in chosen:
                what = f"no such component, there is {listing(chosen)}"
                self.report(full, f"{what}; type {key}.{near} in its place")
            else:
                checked[name] = self.component(node, full, place)
        return checked

    def component(self, node: Any, key: str, place: Place) -> Any:
        """Check a component: its target, then its arguments."""
        is_null = node is None and (place.nullable or place.named)
        if is_null or {key, f"{key}._target_"} & self.skip:
            return None
        implied = place.kinds[0] if place.implied else REQUIRED
        target = node.get("_target_", implied) if isinstance(node, dict) else REQUIRED
        if node not in (None, REQUIRED) and not isinstance(node, dict):
            how = _how_to_choose(key, place, node)
            self.report(key, f"{given(node)} given, expected a component; {how}")
        elif target in (None, REQUIRED):
            self.report(key, f"missing; {_how_to_choose(key, place)}")
        elif wrong := self._wrong_target(target, key, place):
            self.report(f"{key}._target_", wrong)
        else:
            return self._arguments(target, node, key, place)
        return node if isinstance(node, dict) else None

    def _wrong_target(self, target: Any, key: str, place: Place) -> str | None:
        component, family = registry.find(str(target)), libraries.family_of(str(target))
        kind = component.group if component else family.name if family else None
        if kind is not None and (not place.kinds or {kind, target} & {*place.kinds}):
            return libraries.missing_package(target)
        name = str(target).rpartition(".")[2]
        similar = [*_targets(place), *(f"{each}.{name}" for each in place.kinds)]
        near = nearest(str(target), similar, cutoff=0.92)  # names share their group
        remedy = f"type {key}._target_={near}" if near else "`imports` names modules of your own"
        if kind == "torch.nn" and "model" in place.kinds:
            remedy = f"type {key}=module {key}.module._target_={target}"
        return f"{given(target)} given, expected {_fitting(place)}; {remedy}"

    def fields(
        self,
        node: Mapping[str, Any],
        key: str,
        arguments: Mapping[str, Argument],
        parts: Mapping[str, Place],
        injected: Collection[str] = (),
        takes_any: bool = False,
    ) -> dict[str, Any]:
        """Check the items of a mapping, and fill in defaults.

        Args:
            node: The mapping.
            key: Its full key.
            arguments: The values that it accepts.
            parts: The components that it accepts.
            injected: Arguments that the run sets.
            takes_any: It accepts values of any name.
        """
        names, prefix = sorted({*arguments, *parts}), f"{key}." if key else ""
        checked: dict[str, Any] = {}
        for name, value in node.items():
            full = prefix + name
            if name in ("_target_", "_after_", "_args_") or full in self.skip:
                checked[name] = self._nested(value, full)
            elif name in parts:
                checked[name] = self.place(value, full, parts[name])
            elif name in injected:
                self.report(full, f"{given(value)} given, but the run sets it; leave it away")
            elif name in arguments or takes_any:
                if not holds_component(value):
                    self.value(arguments.get(name, Argument(Any, None)), value, full)
                checked[name] = self._nested(value, full)
            elif self.is_variable(full, value):
                checked[name] = value
            else:
                below = sorted(each for each in self.typed if each.startswith(f"{name}."))
                for each in (not key and below) or [full]:
                    self.unknown(each, key, [prefix + known for known in names])
        for name in [name for name in {**arguments, **parts} if name not in node]:
            full, default = prefix + name, arguments[name].default if name in arguments else None
            if name in parts and (default == REQUIRED or name not in arguments):
                is_needed = default == REQUIRED or not (parts[name].nullable or parts[name].named)
                checked[name] = self.place(REQUIRED if is_needed else None, full, parts[name])
            elif default == REQUIRED:
                self.value(arguments[name], REQUIRED, full)
            elif default is not values.ABSENT:
                checked[name] = default
        return checked

    def _arguments(
        self, target: str, node: Mapping[str, Any], key: str, place: Place
    ) -> dict[str, Any]:
        """Check the arguments of a component, or of a library class once that may be imported."""
        component, family = registry.find(target), libraries.family_of(target)
        call, injected, arguments = None, frozenset[str](), {}
        if component:
            call, injected = component.target, registry.GROUPS[component.group].injected
            arguments = values.arguments_of(target)
        elif family and self.loads:
            call, injected = libraries.resolve_target(target), family.injected
            arguments = values.class_arguments(call, injected)
        signature = inspect.signature(call).parameters if call else {}
        takes_any = call is None or any(p.kind is p.VAR_KEYWORD for p in signature.values())
        around, before = beside(place, arguments), len(self.problems)
        filled = {*place.given, *list(arguments)[: len(node.get("_args_", ()))], *around}
        accepted = {
            name: replace(each, default=values.ABSENT) if name in filled else each
            for name, each in (arguments | around).items()
        }
        of_data = signature if component and component.group == "dataset" else arguments
        parts = places.PARTS | places.PARTS_OF.get(target, {}) if component else {}
        parts = {name: part for name, part in parts.items() if name in of_data}
        own = self.fields(node, key, accepted, parts, injected & signature.keys(), takes_any)
        checked = {"_target_": target, **own}
        settings = target if target.startswith("settings/") else place.beside
        mine = arguments if settings == target else around
        held = {name: checked[name] for name in mine if name in checked}
        is_right = len(self.problems) == before and not any(is_below(k, [key]) for k in self.skip)
        if is_right and held and settings and not self.loads:
            try:  # settings of the right types check themselves
                libraries.resolve_target(settings)(**held)
            except ValueError as error:
                text = " ".join(str(error).split())
                self.problems.append(Problem("" if text.startswith(key) else key, text))
        return checked

    def libraries(self, value: Any, key: str) -> None:
        """Check the arguments of every library class in a config, importing the classes."""
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, (list, tuple)):
            items = enumerate(value)
        elif isinstance(value, Mapping):
            items, target = value.items(), value.get("_target_")
            if isinstance(target, str) and "/" not in target:
                module = places.PARTS_OF["model/module"]["module"]
                place = module if key == "model.module" else places.PLACES.get(key, Place(()))
                try:
                    if missing := libraries.missing_package(target):
                        self.report(f"{key}._target_", missing)
                    else:
                        self._arguments(target, value, key, place)
                except ValueError as error:
                    self.report(f"{key}._target_", str(error))
        for name, item in items:
            self.libraries(item, f"{key}.{name}" if key else str(name))

    def _nested(self, value: Any, key: str) -> Any:
        if self.loads:
            return value
        if isinstance(value, dict):
            if "_target_" in value:
                return self.component(value, key, Place(()))
            return {name: self._nested(item, f"{key}.{name}") for name, item in value.items()}
        if isinstance(value, list):
            return [self._nested(item, f"{key}.{i}") for i, item in enumerate(value)]
        return value


def _is_chosen(node: Any, place: Place) -> bool:
    """Return whether an item of components by name has a target, or a source its data set."""
    node = node.get("dataset") if place.implied and isinstance(node, dict) else node
    return isinstance(node, dict) and "_target_" in node
