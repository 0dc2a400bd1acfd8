"""One job: its overrides checked, composed, resolved and checked again as a whole."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from penstock.core import registry
from penstock.core.own_folder import own_folder
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import MissingFile, absolute_path, is_url
from penstock.datasets.files.passwords import hidden, masked
from penstock.pipeline.config.check import check
from penstock.pipeline.config.combinations import check_combinations, suit_iterable
from penstock.pipeline.config.composition import Composer, CompositionError
from penstock.pipeline.config.discovery import load_imports
from penstock.pipeline.config.errors import ConfigError, Problem, listing, nearest
from penstock.pipeline.config.hints import rename_engine
from penstock.pipeline.config.interpolation import plain, referred_keys, unresolved_keys
from penstock.pipeline.config.overrides import Change, Choice, Parsed, parse
from penstock.pipeline.config.places import (
    AROUND,
    AUGMENT,
    CHOSEN_BY,
    EXECUTION,
    LENGTH,
    NAMED,
    PRESETS,
    STEPS,
    top_level_keys,
)
from penstock.pipeline.config.values import given

SAVED = "config.yaml"
RESUME = "trainer.resume"
CHECKPOINTS = ("evaluate.checkpoint", "predict.checkpoint")

_DATA_PLACES = frozenset(
    f"dataset.{part}.{name}"
    for part in ("storage", "source")
    for name in ("path", "table", "query", "topic", "queue")
)
_TIME = re.compile(r"(\d\d-\d\d-\d\d)(?:-(\d+))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class Job:
    """A checked job.

    Attributes:
        config: Its plain config.
        overrides: What Hydra has to be given to compose the same.
    """

    config: dict[str, Any]
    overrides: tuple[str, ...]


def read_job(texts: Sequence[str], composer: Composer, *, command: str | None = None) -> Job:
    """Compose and check what the overrides of one job say.

    Args:
        texts: Overrides as typed.
        composer: Groups and options, with all components registered.
        command: The command whose settings stand under its name.

    Raises:
        ConfigError: With all mistakes.
    """
    keys = _command_keys(command)
    parsed = parse(texts, composer, command=command, command_keys=keys)
    for text in parsed.hydra:
        key = text.split("=")[0]
        parsed.problems.append(Problem(key, "only a sweep has a launcher and a sweeper; add -m"))
    run = saved_run(parsed, command)
    if run is not None:
        config = None if command else _as_typed(run, texts, parsed, composer)
        if config is not None:
            return Job(config, tuple(texts))
        added = _command_node(command, parsed)
        changed, variables = apply_to_saved(run, parsed, added, composer)
        checked = _checked(changed, parsed, command=command, variables=variables)
        return Job(checked, tuple(texts))
    wrong = {problem.key for problem in parsed.problems}
    chosen = CHOSEN_BY.get(command or "", {})
    wrong |= {group for name, group in chosen.items() if f"{command}.{name}" in wrong}
    if wrong & set(PRESETS):
        # It might have chosen anything, so nothing can be said about the values.
        raise ConfigError(parsed.problems)
    composer = _with_imports(parsed, composer)
    if command is not None:
        _choose_defaults(parsed, command, wrong)
    composed, accepted = compose_choices(parsed, composer)
    with open_dict(composed):
        composed.update(_command_node(command, parsed))
    skip = frozenset(key.replace("/", ".") for key in wrong)
    accepted += _apply(composed, parsed, composer, skip)
    checked = _checked(composed, parsed, skip=skip, command=command, fresh=True)
    return Job(checked, tuple(accepted))


def check_config(config: DictConfig, command: str | None = None) -> dict[str, Any]:
    """Resolve and check a config that is composed already.

    Raises:
        ConfigError: With all mistakes.
    """
    return _checked(config, Parsed([], [], [], []), command=command)


def _checked(
    config: DictConfig,
    parsed: Parsed,
    *,
    skip: frozenset[str] = frozenset(),
    command: str | None = None,
    variables: frozenset[str] = frozenset(),
    fresh: bool = False,
) -> dict[str, Any]:
    if "hydra" in config:
        with open_dict(config):
            del config["hydra"]
    resolved, unresolved = plain(config)
    resolved = hidden(resolved)
    rename_engine(resolved)
    if fresh:
        chosen = {choice.group for choice in parsed.choices}
        chosen |= {change.key.partition(".")[0] for change in parsed.changes}
        if not chosen & {*PRESETS}:  # which may have chosen anything
            suit_iterable(resolved, chosen)
    skip |= {*unresolved_keys(resolved)}
    variables |= referred_keys(config)
    typed = frozenset(change.key for change in parsed.changes)
    checked, mistakes = check(
        resolved, skip=skip, variables=variables, typed=typed, command=command
    )
    found = [*parsed.problems, *unresolved, *mistakes]
    found += check_combinations(checked, {problem.key for problem in found} | skip)
    if found:
        raise ConfigError(found)
    return checked


def _with_imports(parsed: Parsed, composer: Composer) -> Composer:
    """Load what presets import, and make a composer that knows what has come with it."""
    try:
        wanted = [
            name
            for choice in parsed.choices
            if choice.group in PRESETS
            for option in choice.options
            for name in composer.option(choice.group, option).get("imports") or []
        ]
    except CompositionError as error:
        raise ConfigError([*parsed.problems, Problem("", str(error))]) from error
    if not wanted:
        return composer
    load_imports(wanted)
    return composer.again()


def compose_choices(parsed: Parsed, composer: Composer) -> tuple[DictConfig, list[str]]:
    """Compose the options' config, unresolved, and the choices as Hydra takes them.

    Choices for which there is no default are appended.

    Raises:
        ConfigError: A file is broken or names an option that there is not.
    """
    texts = {
        choice.group if choice.options else f"~{choice.group}": _text(choice)
        for choice in parsed.choices
    }
    try:
        config, unused = composer.compose(list(texts.values()))
        while unused:
            key = min(unused, key=len)  # one at a time: it may bring defaults for the others
            if key.startswith("~"):
                parsed.problems.append(Problem(key[1:], "there is no such choice to take away"))
                del texts[key]
            else:
                texts[key] = f"+{texts[key]}"
            config, unused = composer.compose(list(texts.values()))
    except CompositionError as error:
        raise ConfigError([*parsed.problems, Problem("", str(error))]) from error
    return config, list(texts.values())


def _text(choice: Choice) -> str:
    if not choice.options:
        return f"~{choice.group}"
    options = ",".join(choice.options)
    return f"{choice.group}=[{options}]" if choice.listed else f"{choice.group}={options}"


def _apply(
    config: DictConfig, parsed: Parsed, composer: Composer, skip: frozenset[str]
) -> list[str]:
    """Apply the changes one by one; returns them as Hydra takes them."""
    accepted = []
    for change in parsed.changes:
        if any(f"{change.key}.".startswith(f"{key}.") for key in skip):
            continue
        if _adds_nothing(change, config):
            text = "{} given, which adds nothing to the keys that stand there"
            remedy = f"to empty it type {change.key}=null, to take a key away ~{change.key}.<key>"
            parsed.problems.append(Problem(change.key, f"{text}; {remedy}"))
            continue
        if (nothing := _takes_nothing_away(change, config)) is not None:
            parsed.problems.append(nothing)
            continue
        try:
            composer.apply(config, change.override)
        except CompositionError as error:
            parsed.problems.append(_not_applied(change, config, error))
            continue
        accepted.append(as_hydra(change))
    return accepted


def _adds_nothing(change: Change, config: DictConfig) -> bool:
    """Tell whether `{}` is given where keys stand: mappings are merged, so that they would stay."""
    if change.override.is_delete() or change.override.value() != {}:
        return False
    found = OmegaConf.select(config, change.key, throw_on_missing=False)
    return isinstance(found, DictConfig) and bool(found)


def _takes_nothing_away(change: Change, config: DictConfig) -> Problem | None:
    """Refuse null for a name that is not there.

    A step that an augmentation has not may be one of another that a sweep goes over, so there
    the name must be nearly that of one.
    """
    parent, _, name = change.key.rpartition(".")
    if parent not in NAMED or change.override.is_delete() or change.override.value() is not None:
        return None
    found = OmegaConf.select(config, parent)
    names = [str(each) for each in found] if isinstance(found, DictConfig) else []
    near = nearest(name, names)
    if name in names or (near is None and parent in STEPS):
        return None
    remedy = f"type {parent}.{near}=null" if near else f"leave {change.key} away"
    there = f"{parent} has {listing(names) or 'none'}"
    return Problem(change.key, f"null given, which takes away nothing: {there}; {remedy}")


def as_hydra(change: Change) -> str:
    """Write a change in the form that Hydra accepts wherever the key stands."""
    if change.override.is_delete():
        return f"~{change.key}"
    return f"++{change.key}={change.override.get_value_element_as_str()}"


def _not_applied(change: Change, config: DictConfig, error: Exception) -> Problem:
    if not change.override.is_delete():
        found = OmegaConf.select(config, change.key, throw_on_missing=False)
        if isinstance(found, DictConfig) and found:
            text, names = change.override.get_value_element_as_str(), [*map(str, found)]
            return Problem(change.key, f"{text} given, where the keys {listing(names)} stand; "
                           f"type {change.key}.{names[0]}=...")  # fmt: skip
        return Problem(change.key, f"cannot be given here: {error}")
    parent, _, leaf = change.key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    near = nearest(leaf, names)
    remedy = f"; type ~{parent + '.' if parent else ''}{near}" if near else ""
    return Problem(change.key, f"there is nothing of this name to take away{remedy}")


def _command_keys(command: str | None) -> tuple[str, ...]:
    if command is None:
        return ()
    component = registry.find(f"settings/{command}")
    return () if component is None else tuple(registry.option_node(component))[1:]


def _choose_defaults(parsed: Parsed, command: str, wrong: Collection[str]) -> None:
    """Choose what a command's settings choose where nothing is typed."""
    component = registry.find(f"settings/{command}")
    for name, group in CHOSEN_BY.get(command, {}).items():
        typed = [choice for choice in parsed.choices if choice.group == group]
        if component is not None and not typed and group not in wrong:
            option = str(registry.option_node(component)[name])
            parsed.choices.append(Choice(group, (option,), False, f"{group}={option}"))


def _command_node(command: str | None, parsed: Parsed) -> dict[str, dict[str, Any]]:
    """Make the settings of a command, under its name."""
    if command is None:
        return {}
    component = registry.find(f"settings/{command}")
    node: dict[str, Any] = {"_target_": f"settings/{command}"}
    if component is not None:
        node = dict(registry.option_node(component))
    for choice in parsed.choices:
        for name, group in CHOSEN_BY.get(command, {}).items():
            if choice.group == group and choice.options:
                node[name] = choice.options[0]
    return {command: node}


def saved_run(parsed: Parsed, command: str | None) -> Path | None:
    """Find the saved config that ``trainer.resume=<path>`` means, or a command's checkpoint.

    Returns:
        The file; None where nothing is named so, where a checkpoint lies in no run's folder (it
        is of what is typed), or there is no run at the path: that is added to the problems, as is
        that a command has none, where there are runs.
    """
    key, path, outputs = RESUME, None, "outputs"
    for change in parsed.changes:
        if change.key == "outputs":
            outputs = change.override.value()
        if change.key in (RESUME, *CHECKPOINTS):
            key, path = change.key, change.override.value()
    own = f"{command}.checkpoint"
    if path is None and own in CHECKPOINTS and (newest := _type_newest(own, outputs)):
        parsed.problems.append(Problem(own, f"missing, accepts a run's folder{newest}"))
    if not isinstance(path, str) or (key == RESUME and path in ("auto", "None", "")):
        return None
    if is_url(path):
        return _saved_behind(path, key, parsed)
    folder = Path(path).expanduser()
    for candidate in (folder, *folder.parents[:2]):
        if (candidate / SAVED).is_file():
            return candidate / SAVED
    if key != RESUME and folder.is_file():
        return None
    what = f"there is no {SAVED} in it" if folder.exists() else "there is no such folder"
    other = "a checkpoint in one, or auto" if key == RESUME else "or a checkpoint"
    problem = Problem(key, f"{path!r} given, but {what}; accepts a run's folder, such as "
                      f"outputs/<date>/<time>, {other}{_type_newest(key, outputs)}")  # fmt: skip
    parsed.problems.append(problem)
    return None


def _saved_behind(url: str, key: str, parsed: Parsed) -> Path | None:
    """Copy the saved config of a run behind a URL, or of the run that a checkpoint there is of."""
    from penstock.datasets.files.listings import find_file

    try:
        if (run := run_behind(url)) is not None:
            return fetched_run(run, (SAVED,)) / SAVED
        if key != RESUME and find_file(absolute_path(url)) is not None:
            return None
    except (ValueError, ExplainedError) as error:
        parsed.problems.append(Problem(key, str(error)))
        return None
    what = f"{masked(url)!r} given, but there is no {SAVED} in it"
    parsed.problems.append(Problem(key, f"{what}; accepts a run's folder, or a checkpoint in one"))
    return None


def run_behind(url: str) -> str | None:
    """Find the URL of the run that a URL names: its own, or that of a checkpoint in it.

    Raises:
        ValueError: The URL carries a password.
        RemoteError: It cannot be read.
    """
    from penstock.datasets.files.clients import AccessDenied
    from penstock.datasets.files.remote import read_url

    url, denied = absolute_path(url), None
    for folder in (url, *(url.rsplit("/", up)[0] for up in (1, 2))):
        try:
            if not folder.endswith(":/") and read_url(f"{folder}/{SAVED}"):
                return folder
        except MissingFile:
            pass
        except AccessDenied as error:  # or there is none, and the key may not list
            denied = denied or error
    if denied is not None:
        raise denied
    return None


def fetched_run(url: str, names: Sequence[str]) -> Path:
    """Copy small files of a run behind a URL, those that are there, to a folder of this process."""
    from penstock.datasets.files.local_copies import fetch_files

    folder = Path(tempfile.mkdtemp(dir=own_folder()))
    fetch_files(url, names, folder)
    return folder


def newest_first(outputs: Path) -> Iterator[Path]:
    """Run folders, the newest first by their names."""
    found = []
    for day in outputs.iterdir() if outputs.is_dir() else ():
        if not _DATE.fullmatch(day.name) or not day.is_dir():
            continue
        for folder in day.iterdir():
            match = _TIME.fullmatch(folder.name)
            if match and (folder / SAVED).is_file():
                found.append((day.name, match[1], int(match[2] or 1), folder))
    for *_, folder in sorted(found, reverse=True):
        yield folder


def _type_newest(key: str, outputs: Any) -> str:
    """Tell how to name the newest run that has a checkpoint; nothing where there is none."""
    if is_url(outputs):
        return ""
    folders = newest_first(Path(str(outputs)).expanduser())
    newest = next((each for each in folders if next(each.glob("checkpoints/*.pt"), None)), None)
    short = key.rpartition(".")[2] if key in CHECKPOINTS else key
    return f"; type {short}={newest}" if newest else ""


def apply_to_saved(
    file: Path, parsed: Parsed, added: Mapping[str, Any], composer: Composer
) -> tuple[DictConfig, frozenset[str]]:
    """Change a run's own config by the given values; mistakes go to `parsed.problems`.

    Args:
        file: The saved config.
        parsed: What was typed.
        added: Keys that stand beside those of the run, which values may be given for.
        composer: Changes values.

    Returns:
        The config, and the variables that the run's has.
    """
    config = _read_saved(file)
    keys = [change.key for change in parsed.changes]
    tries = any(key in CHECKPOINTS for key in keys)  # a trained model, maybe on other data
    others = [choice for choice in parsed.choices if tries and _is_data(choice.group)]
    for choice in parsed.choices:
        if choice not in others:
            what = "is tried keeps the components of its config but for its data"
            what = what if tries else "is gone on with keeps the components of its config"
            parsed.problems.append(Problem(choice.group, f"{choice.text!r} given, but a run that "
                                           f"{what}; leave it away"))  # fmt: skip
    if others:
        _choose_data(config, replace(parsed, choices=others), composer)
    if tries and _DATA_PLACES & {*keys}:
        for name in ("val_path", "test_path"):  # they lie beside what the run had
            if name in config["dataset"]:
                config["dataset"][name] = None
    variables = _variables_of(config)
    config.update(added)
    filled = variables & {*keys}
    for key in filled:
        parsed.problems.append(
            Problem(key, "a saved config has its variables filled in already, so this would "
                    "change nothing; change the keys that used it")
        )  # fmt: skip
    saved = [str(name) for name in config.get("imports") or ()]
    _apply(config, parsed, composer, filled)
    _refuse_untyped(saved, [str(name) for name in config.get("imports") or ()], keys)
    return config, variables


def _read_saved(file: Path) -> DictConfig:
    config = OmegaConf.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    if not isinstance(config, DictConfig):
        raise ConfigError([Problem(RESUME, f"{file} is damaged: a mapping is expected in it")])
    return config


def _as_typed(
    file: Path, texts: Sequence[str], parsed: Parsed, composer: Composer
) -> dict[str, Any] | None:
    """Read a command line that is a run's own, but for what may differ and what was changed.

    Args:
        file: The saved config of the run.
        texts: Overrides as typed.
        parsed: What they say.
        composer: Groups and options.

    Returns:
        The config, with the run's own values where they may differ and none was typed; None where
        it cannot be read so, or where values alone were typed: they change the saved config.

    Raises:
        ConfigError: Options were chosen with which it is another run.
    """
    new = [text for text in texts if not text.lstrip("+").startswith(f"{RESUME}=")]
    try:
        saved = _read_saved(file)
        config = read_job(new, composer).config
        if config["imports"] != list(saved.get("imports") or ()):
            return None
        own = _checked(saved, Parsed([], [], [], []), variables=_variables_of(saved))
    except ConfigError:  # it will be said of the saved config
        return None
    paths = {choice: choice.group.rpartition("@")[2].replace("/", ".") for choice in parsed.choices}
    typed = [change.key for change in parsed.changes]
    for group, keys in {**EXECUTION, "trainer": [*EXECUTION["trainer"], *LENGTH]}.items():
        for key in keys:
            full = f"{group}.{key}"
            if {group, full} & {*paths.values()}:
                typed.append(full)
            elif not any(f"{each}.".startswith(f"{full}.") for each in typed) and key in own[group]:
                config[group][key] = own[group][key]
    config |= {key: own[key] for key in AROUND if key not in typed and key in own}
    config["trainer"]["resume"] = None
    then, now = _leaves(own), _leaves(config)
    differ = [key for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)]
    differ = [key for key in differ if not any(f"{key}.".startswith(f"{each}.") for each in typed)]
    if differ and not paths:
        return None
    if differ:
        raise ConfigError(_of_another_run(differ, then, now, paths))
    [value] = {change.override.value() for change in parsed.changes if change.key == RESUME}
    config["trainer"]["resume"] = value
    return config


def _of_another_run(
    differ: Sequence[str], then: Mapping[str, Any], now: Mapping[str, Any], paths: dict[Choice, str]
) -> Iterator[Problem]:
    """Tell where what is typed is not the run: of each option, else of all that is typed."""
    remedy = f"leave {' '.join(choice.text for choice in paths)} away, and the run keeps its own"
    found = {
        choice: key
        for choice, path in paths.items()
        for key in reversed(differ)
        if f"{key}.".startswith(f"{path}.")
    }
    at = {choice.group: key for choice, key in found.items()} or {RESUME: differ[0]}
    for name, key in at.items():
        values = [given(each[key]) if key in each else "nothing" for each in (now, then)]
        what = f"with what is typed {key} is {values[0]}, and the run has {values[1]}"
        yield Problem(name, f"{what}; {remedy}")


def _leaves(node: Any, key: str = "") -> dict[str, Any]:
    """List the values in a config by their full keys."""
    if not isinstance(node, Mapping) or not node:
        return {} if node is None else {key: node}
    return {
        full: value
        for name, item in node.items()
        for full, value in _leaves(item, f"{key}.{name}" if key else str(name)).items()
    }


def _is_data(group: str) -> bool:
    return group.partition("/")[0].partition("@")[0] == "dataset"


def _choose_data(config: DictConfig, parsed: Parsed, composer: Composer) -> None:
    """Put chosen data in the place of a run's, or a part of it; how it is decoded stays.

    Args:
        config: The run's; changed.
        parsed: Has the choices of data alone.
        composer: Composes them.
    """
    composed, _ = compose_choices(parsed, composer)
    groups = [choice.group for choice in parsed.choices]
    run = {} if "dataset" not in groups else {**config["dataset"]}
    for group in ("dataset", "sampler") if "dataset" in groups else groups:
        key = group.rpartition("@")[2].replace("/", ".")
        OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
    for name in {"decode", "val_fraction"} & run.keys() & config["dataset"].keys():
        if f"dataset/{name}" not in groups:
            config["dataset"][name] = run[name]


def _refuse_untyped(saved: Sequence[str], given: Sequence[str], typed: Collection[str]) -> None:
    """Refuse to run code that a saved config alone names: it may be a stranger's.

    Args:
        saved: Modules that the saved config names.
        given: Those that the config names now; where they were typed they are loaded already.
        typed: The keys that were typed.

    Raises:
        ConfigError: A module was not named by the command itself.
    """
    named = {name.rpartition("/")[2] for name in given} if "imports" in typed else set()
    if lacking := [name for name in saved if name.rpartition("/")[2] not in named]:
        what = f"the saved config names {', '.join(lacking)}, and what it imports is run"
        how = f"type imports=[{','.join(saved)}] if you trust it"
        raise ConfigError([Problem("imports", f"{what}; {how}")])


def _variables_of(config: DictConfig) -> frozenset[str]:
    """List what the saved config holds for interpolations, which are gone from it."""
    top = {str(name) for name in config} - set(top_level_keys())
    augment = config.get("augment")
    inner = {str(name) for name in augment} if isinstance(augment, DictConfig) else set()
    return frozenset(top | {f"augment.{name}" for name in inner - {*AUGMENT}})


def locate(path: str) -> Callable[[dict[str, Any]], Any]:
    """Import the function at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def print_config(config: Mapping[str, Any], package: str | None = None) -> None:
    """Print a config, or the part of it at `package`, as YAML.

    Raises:
        ConfigError: There is no such part.
    """
    part: Any = config
    for name in package.split(".") if package else ():
        if not isinstance(part, Mapping) or name not in part:
            names = list(part) if isinstance(part, Mapping) else []
            near = nearest(name, names)
            remedy = f"; did you mean {near}?" if near else ""
            raise ConfigError([Problem("--package", f"{package!r} is not in the config{remedy}")])
        part = part[name]
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
    print(text.removesuffix("...\n"), end="")
