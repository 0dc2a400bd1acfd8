"""The one pass over a plain config that finds every mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline import registry
from pipeline.config.allowed import family_of
from pipeline.config.errors import Problem, listing
from pipeline.config.places import (
    LIES_IN,
    MAPPINGS,
    PARTS,
    PARTS_OF,
    STACKS,
    TARGETS,
    VALUES,
    Place,
    mappings_of,
    places_of,
    top_level_keys,
)
from pipeline.config.settings import wrong_settings
from pipeline.config.signatures import Argument, Signature, asks_for, signature_of
from pipeline.config.slips import instead_of, meant_for_another
from pipeline.config.steps import wrong_order
from pipeline.config.values import (
    given,
    holds_component,
    is_unresolved,
    mistake,
    shown,
)
from pipeline.config.wording import accepts, how_to_choose, near_target, not_allowed, wrong_kind

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
        variables: Names that interpolations refer to: values of these names may stand at the
            top and in `augment`, where no component takes them.
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
            checked[key] = walk.component(value, key, places[key])
        elif key in VALUES:
            walk.value(Argument(key, VALUES[key], "???"), value, key)
            checked[key] = value
        elif key == "augment":
            checked[key] = walk.augment(value)
        elif key in MAPPINGS:
            checked[key] = walk.mapping(value, key, MAPPINGS[key])
        elif walk.is_variable(key, value):
            checked[key] = value
        else:
            near = known + [f"{command}.{name}" for name in config.get(command or "", ())]
            walk.unknown(str(key), value, near, "the keys at the top are " + listing(known, 20))
    for key in sorted({*known} - {*config} - skip):
        walk.absent(key, places, checked)
    order = [*config, *(key for key in checked if key not in config)]
    return {key: checked[key] for key in order if key in checked}, walk.problems


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

    def is_variable(self, name: str, value: Any) -> bool:
        """Whether a value stands there for interpolations to refer to."""
        return name in self.variables and not holds_component(value)

    def absent(self, key: str, places: Mapping[str, Place], checked: dict[str, Any]) -> None:
        """A key at the top that the config lacks: null where that is accepted."""
        if key == "imports":
            checked[key] = []
        elif key == "augment":
            checked[key] = {**dict.fromkeys(TARGETS), **{stack: {} for stack in STACKS}}
        elif key in MAPPINGS or (key in places and places[key].nullable):
            checked[key] = {} if key in MAPPINGS else None
        else:
            how = how_to_choose(key, places[key]) if key in places else f"type {key}=..."
            self.report(key, f"missing; {how}")

    def unknown(self, key: str, value: Any, known: list[str], accepted: str) -> None:
        """A key that nothing takes."""
        text = None if isinstance(value, dict) else shown(value)
        remedy = instead_of(key, text, known, self.config, typed=key in self.typed)
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
            self.report(key, wrong)

    def augment(self, value: Any) -> dict[str, Any]:
        """The three stacks, and what they do with targets."""
        if not isinstance(value, dict):
            self.report("augment", f"{given(value)} given; type augment=none or augment=light")
            return {}
        for name in value:
            # A file's own variable stays one when the steps that refer to it are taken away.
            of_file = f"augment.{name}" not in self.typed and not holds_component(value[name])
            ours = name in STACKS or name in TARGETS
            if not ours and not of_file and not self.is_variable(name, value[name]):
                known = [f"augment.{part}" for part in (*STACKS, *TARGETS)]
                accepted = f"accepts {listing([*STACKS, *TARGETS])}"
                self.unknown(f"augment.{name}", value[name], known, accepted)
        stacks = {
            stack: self.mapping(value.get(stack), f"augment.{stack}", MAPPINGS[f"augment.{stack}"])
            for stack in STACKS
        }
        targets = {
            name: self.component(value.get(name), f"augment.{name}", place)
            for name, place in TARGETS.items()
        }
        variables = {k: v for k, v in value.items() if k not in STACKS and k not in TARGETS}
        return {**variables, **targets, **stacks}

    def mapping(self, value: Any, key: str, place: Place) -> dict[str, Any]:
        """Components by name, such as the steps of a stack."""
        if value is None or key in self.skip:
            return {}
        if not isinstance(value, dict):
            what = "steps by name" if place.step else "components by name"
            how = "dataset=<option>" if place.implied else "_target_=..."
            self.report(key, f"{given(value)} given, accepts {what}; type {key}.<name>.{how}")
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
        mappings = mappings_of(signature.target)
        foreign = [part for part in LIES_IN if asks_for(signature, part) is False]
        for name, value in node.items():
            full = f"{key}.{name}"
            if name == "_target_":
                continue
            if name in foreign or (name == "_after_" and place.step):
                checked[name] = value
            elif name == "_args_" and signature.takes_positional:
                checked[name] = self._nested(value, full)
            elif name in parts and (name in signature.arguments or name in signature.injected):
                checked[name] = self.component(value, full, parts[name])
            elif name in mappings and name in signature.arguments and value != "???":
                checked[name] = self.mapping(value, full, mappings[name])
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
            self.problems += wrong_settings(checked, key, signature.target)
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
        self, checked: dict[str, Any], node: dict[str, Any], key: str, signature: Signature
    ) -> None:
        """Report what is required and missing, and write out what registered targets default to."""
        ours = registry.find(signature.target) is not None
        for argument in signature.arguments.values():
            full = f"{key}.{argument.name}"
            if argument.name in node or full in self.skip:
                continue
            own = PARTS_OF.get(signature.target, {}).get(argument.name)
            if argument.required and own is not None:
                self.component("???", full, own)
            elif argument.required and "_args_" not in node:
                self.value(argument, "???", full)
            elif ours:
                checked[argument.name] = argument.default
        for part in LIES_IN:
            if part not in node and asks_for(signature, part):
                self.component("???", f"{key}.{part}", PARTS[part])
