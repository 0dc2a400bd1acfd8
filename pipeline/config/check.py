"""The one pass over a plain config that finds every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline import registry
from pipeline.config.allowed import FAMILIES, family_of
from pipeline.config.errors import Problem, listing, nearest
from pipeline.config.notation import words
from pipeline.config.places import MAPPINGS, PARTS, PLACES, STACKS, VALUES, Place, top_level_keys
from pipeline.config.signatures import Argument, Signature, signature_of
from pipeline.config.slips import instead_of
from pipeline.config.values import given, mistake, shown

_ANYWHERE = Place(kinds=())


def check(
    config: dict[str, Any], *, skip: frozenset[str] = frozenset(), command: str | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Compare a config with the signatures of everything it names.

    Args:
        config: A plain config, resolved.
        skip: Keys below which nothing is looked at, since they have been reported already.
        command: The command whose settings stand under its name.

    Returns:
        The config with the defaults of registered components filled in, and all mistakes.
    """
    walk = _Walk(config, skip)
    places = dict(PLACES)
    if command is not None:
        places[command] = Place(("settings",), only=f"settings/{command}")
    known = [*top_level_keys(), *places]
    checked: dict[str, Any] = {}
    for key, value in config.items():
        if key in skip:
            continue
        if key in places:
            checked[key] = walk.component(value, key, places[key])
        elif key in VALUES:
            walk.value(Argument(key, VALUES[key], "???"), value, key)
            checked[key] = value
        elif key == "augment":
            checked[key] = walk.augment(value)
        elif key in MAPPINGS:
            checked[key] = walk.mapping(value, key, MAPPINGS[key])
        elif key not in known:
            walk.unknown(str(key), value, known, "the keys at the top are " + listing(known, 20))
    for key in sorted({*known} - {*config} - skip):
        walk.absent(key, places, checked)
    order = [*config, *(key for key in checked if key not in config)]
    return {key: checked[key] for key in order if key in checked}, walk.problems


@dataclass(slots=True)
class _Walk:
    """Goes through a config and collects what is wrong."""

    config: dict[str, Any]
    skip: frozenset[str]
    problems: list[Problem] = field(default_factory=list)

    def report(self, key: str, message: str) -> None:
        self.problems.append(Problem(key, message))

    def absent(self, key: str, places: Mapping[str, Place], checked: dict[str, Any]) -> None:
        """A key at the top that the config lacks: null where that is accepted."""
        if key == "imports":
            checked[key] = []
        elif key == "augment":
            checked[key] = {stack: {} for stack in STACKS}
        elif key in MAPPINGS or (key in places and places[key].nullable):
            checked[key] = {} if key in MAPPINGS else None
        else:
            self.report(key, f"missing; type {key}=...")

    def unknown(self, key: str, value: Any, known: list[str], accepted: str) -> None:
        """A key that nothing takes."""
        text = None if isinstance(value, dict) else shown(value)
        remedy = instead_of(key, text, known, self.config)
        what = "" if text is None else f"{given(value)} given, "
        self.report(key, f"{what}unknown key; {accepted}; {remedy}")

    def value(self, argument: Argument, value: Any, key: str) -> None:
        """One value of one argument."""
        if key in self.skip or _holds_skip(value):
            return
        if isinstance(value, str) and value == "???":
            self.report(key, f"missing, accepts {words_of(argument)}; type {key}=...")
            return
        wrong = mistake(argument, value, key)
        if wrong is not None:
            self.report(key, wrong)

    def augment(self, value: Any) -> dict[str, Any]:
        """The three stacks."""
        if not isinstance(value, dict):
            self.report("augment", f"{given(value)} given; type augment=none or augment=light")
            return {}
        for name in value:
            if name not in STACKS:
                known = [f"augment.{stack}" for stack in STACKS]
                self.unknown(f"augment.{name}", value[name], known, "accepts train, eval, device")
        return {
            stack: self.mapping(value.get(stack), f"augment.{stack}", MAPPINGS[f"augment.{stack}"])
            for stack in STACKS
        }

    def mapping(self, value: Any, key: str, place: Place) -> dict[str, Any]:
        """Components by name, such as the steps of a stack."""
        if value is None or key in self.skip:
            return {}
        if not isinstance(value, dict):
            what = "steps by name" if place.step else "components by name"
            self.report(key, f"{given(value)} given, accepts {what}; type {key}.<name>._target_=...")
            return {}
        if "_target_" in value:
            self.report(
                key, f"a component stands here, accepts components by name; type "
                f"{key}.<name>._target_={value['_target_']}"
            )  # fmt: skip
            return {}
        if place.step:
            self._order(value, key)
        return {
            name: self.component(node, f"{key}.{name}", place) for name, node in value.items()
        }

    def _order(self, steps: dict[str, Any], key: str) -> None:
        for name, node in steps.items():
            after = node.get("_after_") if isinstance(node, dict) else None
            if after is not None and (after not in steps or after == name):
                others = [other for other in steps if other != name]
                near = nearest(str(after), others)
                remedy = f"; type {key}.{name}._after_={near}" if near else ""
                self.report(
                    f"{key}.{name}._after_",
                    f"no step named {given(after)}, the others are {listing(others)}{remedy}",
                )

    def component(self, node: Any, key: str, place: Place) -> Any:
        """A component: its target, then its arguments."""
        if key in self.skip or (node is None and place.nullable):
            return None
        if isinstance(node, str) and node == "???":
            self.report(key, f"missing; {_how_to_choose(key, place)}")
            return None
        if not isinstance(node, dict):
            self.report(key, f"{given(node)} given, accepts a component; "
                        f"{_how_to_choose(key, place, node)}")  # fmt: skip
            return None
        signature = self._signature(node, key, place)
        return node if signature is None else self._arguments(node, key, place, signature)

    def _signature(self, node: dict[str, Any], key: str, place: Place) -> Signature | None:
        target = node.get("_target_")
        where = f"{key}._target_"
        if target is None or target == "???":
            self.report(where, f"missing; {_how_to_choose(key, place)}")
            return None
        if not isinstance(target, str):
            self.report(where, f"{given(target)} given, accepts group/name or a dotted path")
            return None
        if registry.find(target) is None and family_of(target) is None:
            self.report(where, _not_allowed(target, place))
            return None
        signature = signature_of(target)
        if isinstance(signature, str):
            self.report(where, f"{signature.removeprefix(f'_target_ {target!r} ')}"
                        f"{_near_target(target, place)}")  # fmt: skip
            return None
        if place.only is not None and target != place.only:
            self.report(where, f"{target!r} given, accepts {place.only} alone")
            return None
        if place.kinds and signature.kind not in place.kinds:
            self.report(where, f"{target!r} is a {_kind(signature.kind)}, accepts a "
                        f"{' or a '.join(map(_kind, place.kinds))}")  # fmt: skip
            return None
        return signature

    def _arguments(
        self, node: dict[str, Any], key: str, place: Place, signature: Signature
    ) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        before = len(self.problems)
        for name, value in node.items():
            full = f"{key}.{name}"
            if name == "_target_" or (name == "_after_" and place.step):
                checked[name] = value
            elif name == "_args_" and signature.takes_positional:
                checked[name] = self._nested(value, full)
            elif name in PARTS and (name in signature.arguments or name in signature.injected):
                checked[name] = self.component(value, full, PARTS[name])
            elif name in signature.injected:
                self.report(full, f"{given(value)} given, but it is known at run time alone and "
                            f"cannot be configured; leave it away")  # fmt: skip
            elif name in signature.arguments:
                checked[name] = self._argument(signature.arguments[name], value, full)
            elif signature.takes_any:
                checked[name] = self._nested(value, full)
            else:
                known = [f"{key}.{argument}" for argument in signature.arguments]
                accepts = listing(signature.arguments) or "no arguments"
                self.unknown(full, value, known, f"{signature.target} accepts {accepts}")
        self._fill(checked, node, key, signature)
        if signature.kind == "settings" and len(self.problems) == before:
            self._settings(checked, key, signature)
        return checked

    def _argument(self, argument: Argument, value: Any, key: str) -> Any:
        """A value, which may be a component or hold some."""
        if _holds_component(value):
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
        self, checked: dict[str, Any], node: dict[str, Any], key: str, signature: Signature
    ) -> None:
        """Report what is required and missing, and write out what registered targets default to."""
        ours = registry.find(signature.target) is not None
        for argument in signature.arguments.values():
            full = f"{key}.{argument.name}"
            if argument.name in node or full in self.skip:
                continue
            if argument.required and "_args_" not in node:
                self.value(argument, "???", full)
            elif ours:
                checked[argument.name] = argument.default
        if signature.kind == "dataset" and "storage" in signature.injected:
            asks = registry.find(signature.target)
            if "storage" not in node and asks is not None and _asks_for(asks.target, "storage"):
                self.component("???", f"{key}.storage", PARTS["storage"])

    def _settings(self, checked: dict[str, Any], key: str, signature: Signature) -> None:
        """Settings check themselves where they are made; they are light enough to be made here."""
        component = registry.find(signature.target)
        assert component is not None
        try:
            component.target(**{k: v for k, v in checked.items() if k != "_target_"})
        except ValueError as error:
            text = " ".join(str(error).split())
            self.report("", text) if text.startswith(f"{key}") else self.report(key, text)


class Skip:
    """Stands for a value that could not be resolved and has been reported."""


def _holds_skip(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_skip, value.values()))
    if isinstance(value, list):
        return any(map(_holds_skip, value))
    return value is Skip


def _holds_component(value: Any) -> bool:
    if isinstance(value, dict):
        return "_target_" in value or any(map(_holds_component, value.values()))
    return isinstance(value, list) and any(map(_holds_component, value))


def _asks_for(call: Any, name: str) -> bool:
    import inspect

    return name in inspect.signature(call).parameters


def words_of(argument: Argument) -> str:
    """What an argument accepts."""
    from pipeline.config.notation import NOTHING

    if argument.annotation is NOTHING:
        return "a component: a mapping with _target_"
    return "a value" if argument.annotation is Any else words(argument.annotation)


def _kind(name: str) -> str:
    return FAMILIES[name].what if name in FAMILIES else name


def _names(place: Place) -> list[str]:
    """Targets that fit a place and are known without importing a library."""
    kinds = place.kinds or tuple(registry.GROUPS)
    return [c.target_name for c in registry.components() if c.group in kinds]


def _how_to_choose(key: str, place: Place, given_value: Any = None) -> str:
    """What to type to choose a component."""
    groups = [registry.GROUPS[kind] for kind in place.kinds if kind in registry.GROUPS]
    option_groups = [group.option_group or group.name for group in groups]
    slashed = key.replace(".", "/")
    names = [name.rpartition("/")[2] for name in _names(place)]
    if slashed in option_groups or key in PLACES:
        near = nearest(str(given_value), names) if given_value is not None else None
        return f"type {slashed}={near or '<option>'} (options: {listing(names) or 'none'})"
    example = f"type {key}._target_=<{' or '.join(map(_kind, place.kinds)) or 'target'}>"
    return f"{example} ({listing(_names(place))})" if names else example


def _not_allowed(target: str, place: Place) -> str:
    prefixes = [f"{kind}.*" for kind in (place.kinds or FAMILIES) if kind in FAMILIES]
    accepted = [*_names(place)[:8], *prefixes]
    return (
        f"{target!r} is neither registered nor on the allow-list, accepts {listing(accepted, 16)}"
        f"{_near_target(target, place)}; a component of your own is registered in a module "
        f"that `imports` names"
    )


def _near_target(target: str, place: Place) -> str:
    from pipeline.config.library import names_of

    names = _names(place)
    family = family_of(target)
    if family is not None:
        names = names + names_of(family)
    near = nearest(target, names)
    return f"; did you mean {near}?" if near is not None else ""
