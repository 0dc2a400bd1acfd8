"""The one pass over a plain config that checks each component against its signature."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core import registry
from penstock.core.user_errors import Problem, listing, nearest
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.hints import VALUES_INSTEAD, instead_of
from penstock.pipeline.config.interpolation import is_unresolved
from penstock.pipeline.config.libraries import (
    FAMILIES,
    class_arguments,
    family_of,
    is_own,
    missing_package,
    nearest_class,
    resolve_target,
)
from penstock.pipeline.config.options import options_of
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
from penstock.pipeline.config.values import (
    REQUIRED,
    Argument,
    arguments_of,
    given,
    holds_component,
    mistake,
    shown,
)


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
    places = places_of(command)
    known = sorted({*top_level_keys(), *places})
    checked: dict[str, Any] = {}
    for key in [*config, *(key for key in known if key not in config and key not in skip)]:
        if key in skip or walk.is_variable(key, config.get(key)):
            checked[key] = config.get(key)
        elif key in places:
            missing = None if places[key].nullable else REQUIRED
            checked[key] = walk.place(config.get(key, missing), key, places[key])
        elif key in VALUES:
            checked[key] = config.get(key, [] if key == "imports" else REQUIRED)
            walk.value(Argument(key, VALUES[key], REQUIRED), checked[key], key)
        elif key == "augment":
            checked[key] = walk.augment(config.get(key, {}))
        else:
            near = known + [f"{command}.{name}" for name in config.get(command or "", ())]
            for place, value in _as_typed(key, config[key], typed):
                walk.unknown(place, value, near, f"the keys at the top are {listing(known, 20)}")
    return checked, walk.problems


def check_libraries(config: Mapping[str, Any]) -> list[Problem]:
    """Compare the arguments of every library class in a plain config with its signature."""
    walk = _Walk({**config}, frozenset(), frozenset(), frozenset(), loads=True)
    walk.libraries(config, "")
    return walk.problems


def refuse_library_mistakes(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` with all problems that `check_libraries` finds."""
    if problems := check_libraries(config):
        raise ConfigError(problems)


def _as_typed(key: str, value: Any, typed: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys that the user typed below an unknown key, or the key itself."""
    below = sorted(each for each in typed if each.startswith(f"{key}."))
    if not below:
        yield key, value
    for each in below:
        found = value
        for name in each.split(".")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        yield each, found


def beside(place: Place, arguments: Collection[str]) -> dict[str, Argument]:
    """List the settings that may be mixed with the arguments of a component."""
    found = arguments_of(place.beside) if place.beside is not None else {}
    return {name: each for name, each in found.items() if name not in arguments}


def _kind(name: str) -> str:
    return FAMILIES[name].what if name in FAMILIES else name


def _targets(place: Place) -> list[str]:
    """List the registered components that fit a place."""
    kinds = place.kinds or tuple(registry.GROUPS)
    return [c.target_name for c in registry.components() if c.group in kinds]


def how_to_choose(key: str, place: Place, value: Any = None) -> str:
    """Return what to type to choose a component."""
    if place.implied:  # a source of a mix: the user chooses its data set
        return how_to_choose(f"{key}.dataset", PARTS_OF[str(place.only)]["dataset"], value)
    known = [registry.GROUPS[kind].option_group or kind for kind in place.kinds
             if kind in registry.GROUPS]  # fmt: skip
    slashed, (above, _, name) = key.replace(".", "/"), key.rpartition(".")
    if above in known and name in options_of(above):  # `callback.ema.decay=0.9` alone
        return f"type {above}={name}"
    if of_source := key.startswith("dataset.sources.") and key.count(".") > 2:
        names = [name for name in options_of(known[0]) if name not in REFUSED_IN_MIX]
    elif slashed in known or key in PLACES:
        names = options_of(slashed)
    else:
        kinds = " or ".join(map(_kind, place.kinds)) or "target"
        return f"type {key}._target_=<{kinds}> ({listing(_targets(place)) or 'of a library'})"
    near = nearest(str(value), names) if value is not None else None
    typed = key if of_source else slashed
    return f"type {typed}={near or '<option>'} (options: {listing(names, 20) or 'none'})"


@dataclass(slots=True)
class _Walk:
    """Goes through a config and collects the problems."""

    config: dict[str, Any]
    skip: frozenset[str]
    variables: frozenset[str]
    typed: frozenset[str]
    loads: bool = False
    problems: list[Problem] = field(default_factory=list)

    def report(self, key: str, message: str) -> None:
        if key not in self.skip:
            self.problems.append(Problem(key, message))

    def is_variable(self, key: str, value: Any) -> bool:
        return key in self.variables and not holds_component(value)

    def unknown(self, key: str, value: Any, known: list[str], accepted: str) -> None:
        text = None if isinstance(value, dict) else shown(value)
        typed = any(f"{each}.".startswith(f"{key}.") for each in self.typed)
        remedy = instead_of(key, text, known, self.config, typed=typed)
        quoted = "" if text is None else f"{given(value)} given, "
        self.report(key, f"{quoted}unknown key; {accepted}; {remedy}")

    def value(self, argument: Argument, value: Any, key: str) -> None:
        if key in self.skip or is_unresolved(value):
            return
        if value == REQUIRED:
            self.report(key, f"missing; type {key}=...")
        elif (wrong := mistake(argument, value, key)) is not None:
            meant = VALUES_INSTEAD.get(f"{key}={shown(value)}")
            self.report(key, f"{given(value)} given; {meant}" if meant else wrong)

    def augment(self, value: Any) -> dict[str, Any]:
        """Check the stacks of steps, and the settings of boxes and keypoints."""
        if not isinstance(value, dict):
            self.report("augment", f"{given(value)} given; type augment=none or augment=light")
            return {}
        variables = {name: value[name] for name in value if name not in AUGMENT}
        for name, variable in variables.items():
            key = f"augment.{name}"
            of_file = key not in self.typed and not holds_component(variable)
            if not of_file and not self.is_variable(key, variable):
                known = [f"augment.{part}" for part in AUGMENT]
                self.unknown(key, variable, known, f"augment accepts {listing(AUGMENT)}")
        parts = {
            name: self.place(value.get(name), f"augment.{name}", place)
            for name, place in AUGMENT.items()
        }
        return {**variables, **parts}

    def place(self, value: Any, key: str, place: Place) -> Any:
        return (self.mapping if place.named else self.component)(value, key, place)

    def mapping(self, value: Any, key: str, place: Place) -> dict[str, Any]:
        """Check components by name, such as the steps of a stack."""
        if value is None or key in self.skip:
            return {}
        if not isinstance(value, dict) or "_target_" in value:
            how = "dataset=<option>" if place.implied else "_target_=..."
            there = "missing" if value == REQUIRED else f"{given(value)} given"
            self.report(key, f"{there}, expected components by name; type {key}.<name>.{how}")
            return {}
        if place.step:
            self.problems += wrong_order(value, key)
        checked = {}
        chosen = [n for n, node in value.items() if place.implied and _has_dataset(node)]
        for name, node in value.items():
            full = f"{key}.{name}"
            if isinstance(node, dict) and name not in chosen and nearest(name, chosen):
                accepted = f"for another source type {full}.dataset=<option>"
                self.unknown(full, {}, [f"{key}.{other}" for other in chosen], accepted)
                continue
            checked[name] = self.component(node, full, place)
        return checked

    def component(self, node: Any, key: str, place: Place) -> Any:
        """Check a component: its target, then its arguments."""
        if key in self.skip or (node is None and place.nullable):
            return None
        if node is None or node == REQUIRED:
            self.report(key, f"missing; {how_to_choose(key, place)}")
            return None
        if not isinstance(node, dict):
            how = how_to_choose(key, place, node)
            self.report(key, f"{given(node)} given, expected a component; {how}")
            return None
        target = node.get("_target_", place.only if place.implied else None)
        if target is None or target == REQUIRED:
            self.report(key, f"missing; {how_to_choose(key, place)}")
        elif wrong := self._wrong_target(target, key, place):
            self.report(f"{key}._target_", wrong)
        else:
            return self._arguments(target, node, key, place)
        return node

    def _wrong_target(self, target: Any, key: str, place: Place) -> str | None:
        if not isinstance(target, str):
            return f"{given(target)} given, expected group/name or a dotted path"
        component, family = registry.find(target), family_of(target)
        if component is None and family is None:
            return _not_allowed(target, place)
        if missing := missing_package(target):
            return missing
        if place.only is not None and target != place.only:
            return f"{target!r} given, expected {place.only}"
        kind = component.group if component is not None else str(family and family.name)
        if place.kinds and kind not in place.kinds:
            accepted = " or a ".join(map(_kind, place.kinds))
            is_module = kind == "torch.nn" and "model" in place.kinds
            remedy = f"; type {key}=module {key}.module._target_={target}" if is_module else ""
            newer = f"{target.rpartition('.')[0]}.v2.{target.rpartition('.')[2]}"
            if (found := family_of(newer)) and found.name in place.kinds:
                remedy = f"; type {key}._target_={newer}"
            return f"{target!r} is a {_kind(kind)}, expected a {accepted}{remedy}"
        return None

    def _arguments(
        self, target: str, node: Mapping[str, Any], key: str, place: Place
    ) -> dict[str, Any]:
        """Check the arguments of a component, or of a library class once that may be imported."""
        component, family, before = registry.find(target), family_of(target), len(self.problems)
        call, injected, arguments = None, frozenset[str](), {}
        if component:
            call, injected = component.target, registry.GROUPS[component.group].injected
            arguments = arguments_of(target)
        elif family and self.loads:
            call, injected = resolve_target(target), family.injected
            arguments = class_arguments(call, injected)
        signature = inspect.signature(call).parameters if call else {}
        takes_any = call is None or any(p.kind is p.VAR_KEYWORD for p in signature.values())
        parts = PARTS | PARTS_OF.get(target, {})
        around = beside(place, arguments)
        checked: dict[str, Any] = {"_target_": target}
        special = {"_target_", "" if component else "_args_"}
        special |= {"_after_"} if place.step or self.loads else set()
        for name, value in node.items():
            full = f"{key}.{name}"
            if name in special:
                checked[name] = self._nested(value, full)
            elif name in parts and name in signature and component:
                checked[name] = self.place(value, full, parts[name])
            elif name in injected and name in signature:
                self.report(full, f"{given(value)} given, but the run sets it; leave it away")
            elif name in arguments or name in around:
                checked[name] = self._argument(arguments.get(name) or around[name], value, full)
            elif name in LIES_IN and component and "sources" not in node:
                other = "stream" if name == "source" else "image_folder"
                said = f"{target} takes no {name}; leave it away, or type {key}={other}"
                self.report(full, said)
            elif takes_any:
                checked[name] = self._argument(Argument(name, Any, None), value, full)
            else:
                names = [*arguments, *around]
                accepted = f"{target} takes no {name}; it accepts {listing(names, 16) or 'nothing'}"
                self.unknown(full, value, [f"{key}.{each}" for each in names], accepted)
        positional = list(arguments)[: len(node.get("_args_", ()))]
        for name, argument in arguments.items():
            if name in {*node, *place.given, *positional} or f"{key}.{name}" in self.skip:
                continue
            if argument.required and name in PARTS_OF.get(target, {}):
                self.place(REQUIRED, f"{key}.{name}", parts[name])
            elif argument.required:
                self.value(argument, REQUIRED, f"{key}.{name}")
            else:
                checked[name] = argument.default
        for part in LIES_IN if component and component.group == "dataset" else ():
            if part in signature and part not in node:
                self.component(REQUIRED, f"{key}.{part}", PARTS[part])
        own = Place((), beside=target) if target.startswith("settings/") else place
        mine = checked if own is not place else {n: checked[n] for n in around if n in checked}
        self._check_settings(mine, own, key, before)
        return checked

    def libraries(self, value: Any, key: str) -> None:
        """Check the arguments of every library class in a config, importing the classes."""
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, (list, tuple)):
            items = enumerate(value)
        elif isinstance(value, Mapping):
            items, target = value.items(), value.get("_target_")
            if isinstance(target, str) and "/" not in target:
                module = PARTS_OF["model/module"]["module"]
                place = module if key == "model.module" else PLACES.get(key, Place(()))
                try:
                    if missing := missing_package(target):
                        raise ValueError(missing)
                    self._arguments(target, value, key, place)
                except ValueError as error:
                    near = None if missing else nearest_class(target)
                    remedy = f"; did you mean {near}? type {key}._target_={near}" if near else ""
                    self.report(f"{key}._target_", f"{error}{remedy}")
        for name, item in items:
            self.libraries(item, f"{key}.{name}" if key else str(name))

    def _check_settings(
        self, settings: Mapping[str, Any], place: Place, key: str, before: int
    ) -> None:
        """Let settings of the right types check themselves."""
        values = {name: value for name, value in settings.items() if name != "_target_"}
        if not values or place.beside is None or len(self.problems) > before or self.loads:
            return
        if (component := registry.find(place.beside)) and not is_unresolved(values):
            try:
                component.target(**values)
            except ValueError as error:
                text = " ".join(str(error).split())
                self.problems.append(Problem("" if text.startswith(key) else key, text))

    def _argument(self, argument: Argument, value: Any, key: str) -> Any:
        if holds_component(value):
            return self._nested(value, key)
        self.value(argument, value, key)
        return value

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


def _has_dataset(source: Any) -> bool:
    return isinstance(source, dict) and holds_component(source.get("dataset"))


def _not_allowed(target: str, place: Place) -> str:
    """Explain which targets a config can name in place of one that it cannot."""
    if is_own(target):
        return f"{target!r} is not a class that a config can name; register a component of your own"
    near = nearest(target, _targets(place), cutoff=0.92)  # names share their group
    own = f"did you mean {near}" if near else "a module of your own may register it"
    module, _, name = target.rpartition(".")
    if name[:1].isupper() and module.partition(".")[0] not in {"", *sys.stdlib_module_names}:
        own = f"for a class of yours or of a library, type imports=[{module}] too"
    families = [f"{kind}.*" for kind in (place.kinds or FAMILIES) if kind in FAMILIES]
    fitting = listing([*_targets(place)[:8], *families], 16)
    return f"{target!r} is not registered; expected {fitting}; {own}"
