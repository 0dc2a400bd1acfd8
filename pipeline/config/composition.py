"""Hydra's composition without its application: folders, options and values to one config.

The private names of Hydra that this project uses are all imported here; a contract test
(tests/config/test_hydra_contract.py) holds what is expected of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import Overrides, _create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import SafeDumper, YAMLError, safe_dump

from penstock.core import registry
from penstock.core.registry import Component
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError, Problem, listing

__all__ = ["BasicSweeper", "Composer", "HydraException", "Override", "OverrideType", "Quote",
           "QuotedString", "base_version", "setup_globals"]  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
ROOT_CONFIG = "config"

STACK_OF = {"transform": "augment.train", "batch_transform": "augment.device"}
"""Stacks to which the option of a transform adds its step: ``transform=solarize``."""


@contextmanager
def base_version() -> Iterator[None]:
    """Behave as Hydra 1.3 does, whatever an application around us has chosen."""
    holder = version.VersionBase.instance()
    before = holder.version_base
    version.setbase("1.3")
    try:
        yield
    finally:
        holder.version_base = before


class CompositionError(Exception):
    """Composition failed: a broken YAML file, or a preset that names what there is not."""


class Composer:
    """Groups, options and how they make a config.

    Args:
        config_dir: A folder of the user's, searched before ours.
    """

    def __init__(self, config_dir: Path | None = None) -> None:
        self.config_dir = config_dir = None if config_dir == CONF else config_dir
        search_path = create_config_search_path(f"file://{CONF}")
        if config_dir is not None:
            search_path.prepend("command-line", f"file://{config_dir}", SearchPathQuery("main"))
        self.loader = ConfigLoaderImpl(search_path)
        self.parser = OverridesParser.create(config_loader=self.loader)
        self._store_registered()

    def _store_registered(self) -> None:
        """Give every registered component that has no YAML its option."""
        for component in registry.components():
            group = registry.GROUPS[component.group].option_group
            if component.group == "storage" and self._is_to_be_stored("dataset", component):
                _store("dataset", component, _data_set_of(component.name))
            if group is None or not self._is_to_be_stored(group, component):
                continue
            node: dict[str, Any] = registry.option_node(component)
            if component.group == "logger":  # loggers stand side by side, by name; csv always
                node = {"defaults": ["csv", "_self_"], component.name: node}
            elif component.group == "callback":
                node = {component.name: node}
            elif component.group == "engine":
                node = {"_target_": "settings/loader", "engine": component.name}
            package = STACK_OF.get(component.group)
            if package is not None:  # a step of its own name, behind those that are there
                node = {component.name: node}
            _store(group, component, node, package)

    def _is_to_be_stored(self, group: str, component: Component) -> bool:
        if _stored.get((group, component.name)) is component:
            return False
        return not any(
            source.scheme() == "file" and source.is_config(f"{group}/{component.name}")
            for source in self.loader.get_sources()
        )

    def again(self) -> Composer:
        """Make a composer that knows what has been registered since."""
        return Composer(self.config_dir)

    def is_group(self, name: str) -> bool:
        """Tell whether there is a group of this name."""
        return self.loader.repository.group_exists(name)

    def groups(self, parent: str = "") -> list[str]:
        """List every group that has options, without Hydra's own."""
        found = []
        for name in self.loader.repository.get_group_options(parent, ObjectType.GROUP):
            group = f"{parent}/{name}" if parent else name
            if group.split("/")[0] == "hydra":
                continue
            if self.options(group):
                found.append(group)
            found.extend(self.groups(group))
        return found

    def options(self, group: str) -> list[str]:
        """List a group's options."""
        return self.loader.repository.get_group_options(group)

    def summary(self, group: str, option: str) -> str:
        """Describe an option: its YAML's first comment, or its component's docstring."""
        for source in self.loader.get_sources():
            if source.scheme() == "file":
                file = Path(source.path) / group / f"{option}.yaml"
                if file.exists():
                    return _first_comment(file)
        for component in registry.components():
            own = registry.GROUPS[component.group].option_group
            of_storage = group == "dataset" and component.group == "storage"
            if (own == group or of_storage) and component.name == option:
                return component.summary
        return ""

    def option(self, group: str, option: str) -> dict[str, Any]:
        """Read what an option holds by itself, before it is composed.

        Raises:
            CompositionError: Its file is broken.
        """
        try:
            loaded = self.loader.repository.load_config(f"{group}/{option}")
            held: Any = {} if loaded is None else OmegaConf.to_container(loaded.config)
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise CompositionError(_one_line(error)) from error
        return held if isinstance(held, dict) else {}

    def compose(self, choices: Sequence[str]) -> tuple[DictConfig, list[str]]:
        """Compose the config that options make, before any value is changed.

        Args:
            choices: Choices of options, as Hydra writes them.

        Returns:
            The config with its `hydra` node, unresolved, and the groups among the choices for
            which the defaults have no place.

        Raises:
            CompositionError: A file is broken or names an option that there is not.
        """
        repository = _Repository(self.loader.repository)
        try:
            parsed = self.parser.parse_overrides(list(choices))
            overrides = Overrides(repo=repository, overrides_list=parsed)
            with base_version():
                defaults, _ = _create_defaults_list(
                    repository, ROOT_CONFIG, overrides, prepend_hydra=True, skip_missing=False
                )
                config = self.loader._compose_config_from_defaults_list(defaults, repository)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise CompositionError(_one_line(error)) from error
        with open_dict(config.hydra):
            config.hydra.runtime.choices.update(overrides.known_choices)
        for key, found in overrides.override_metadata.items():
            if not (found.used or found.external_override):
                full, option = key.partition("@")[0], overrides.override_choices[key]
                if full == "dataset/annotations" and option in self.options(full):
                    continue  # a task's choice, and this data set brings its own
                group = full.rpartition("/")[2]
                remedy = f"the groups are {listing(self.groups(), 40)}"
                if full != group and self.is_group(group):
                    remedy = f"write 'override /{group}: {option}' if that is meant"
                raise CompositionError(
                    f"{found.containing_config_path}.yaml: 'override {group}: {option}' is of the "
                    f"group {full!r}, which the defaults do not have; {remedy}"
                )
        unused = [
            key for key, found in overrides.override_metadata.items()
            if found.external_override and not found.used
        ]  # fmt: skip
        unused += [f"~{key}" for key, found in overrides.deletions.items() if not found.used]
        return config, unused

    def apply(self, config: DictConfig, override: Override) -> None:
        """Change one value.

        Raises:
            CompositionError: There is nothing to delete, or no such thing can stand there.
        """
        try:
            self.loader._apply_overrides_to_config([override], config)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise CompositionError(_one_line(error)) from error

    def parse(self, text: str) -> Override:
        """Parse one override by Hydra's grammar; `HydraException` where it refuses the text."""
        return self.parser.parse_override(text)


class _Repository(CachingConfigRepository):
    """Reads each file once in a composition, and copies no other option than those it reads."""

    def __init__(self, delegate: IConfigRepository) -> None:
        self.delegate = delegate
        self.cache: dict[str, Any] = {}


_stored: dict[tuple[str, str], Component] = {}
"""What the store of Hydra, one for all composers, holds of ours: by group and option."""


def _store(
    group: str, component: Component, node: dict[str, Any], package: str | None = None
) -> None:
    store = ConfigStore.instance()
    store.store(component.name, node, group=group, package=package, provider="penstock")
    _stored[group, component.name] = component


def _data_set_of(storage: str) -> dict[str, Any]:
    """The option of ``dataset`` that a storage without one in `conf/` gives."""
    parts: list[Any] = [{"storage": storage}, {"decode": "image"}, {"cache": None}]
    return {"defaults": [*parts, {"annotations": None}, "_self_"], "_target_": "dataset/map"}


def _first_comment(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            text = line.lstrip("# ").strip()
            if line.startswith("#") and not text.startswith("@package"):
                return text
            if not line.startswith("#") and text:
                break
    return ""


def _one_line(error: BaseException) -> str:
    """The first lines of a message of Hydra's, without its list of folders."""
    text = str(error) or str(error.__cause__)
    for end in ("\nConfig search path:", "\nSee https:", "\n    full_key:"):
        text = text.split(end)[0]
    return " ".join(text.split())


class Config(dict[str, Any]):
    """A plain config, which a notebook shows as YAML."""

    def _repr_html_(self) -> str:
        texts = (
            (escape(key), escape(safe_dump(value, sort_keys=False, allow_unicode=True)))
            for key, value in self.items()
        )
        parts = (f"<details><summary>{k}</summary><pre>{text}</pre></details>" for k, text in texts)
        return "".join(parts)


SafeDumper.add_representer(Config, SafeDumper.represent_dict)


def compose(
    overrides: Sequence[str] = (), *, config_dir: str | Path | None = None
) -> dict[str, Any]:
    """Compose the config that ``penstock train <overrides>`` would run with.

    It can be called any number of times, also inside of an application of Hydra's own, and
    leaves Hydra's global state alone.

    Args:
        overrides: What one would type: ``["dataset=lmdb", "loader.num_workers=2"]``.
        config_dir: A folder with options of one's own, searched before ours; None takes the
            folder ``conf`` of the working directory, where there is one.

    Returns:
        The plain config: dicts, lists and scalars, resolved and checked.

    Raises:
        ConfigError: A ValueError with a line for every mistake.
    """
    from penstock.pipeline.config.job import read_job

    composer = composer_for(overrides, config_dir=config_dir)
    return Config(read_job(list(overrides), composer).config)


def composer_for(overrides: Sequence[str], *, config_dir: str | Path | None = None) -> Composer:
    """Make a composer that knows our components and those that the overrides import.

    Raises:
        ConfigError: A module that is to be imported does not exist, or `config_dir` does not.
    """
    folder = Path(config_dir or "conf").expanduser()
    if config_dir and not folder.is_dir():
        raise ConfigError([Problem("--config-dir", f"no folder {str(folder)!r}")])
    register_components()
    composer = Composer(folder.resolve() if folder.is_dir() else None)
    imports = imports_in(overrides, composer)
    if imports:
        register_components(imports)
        composer = composer.again()
    return composer


def imports_in(overrides: Sequence[str], composer: Composer) -> list[str]:
    """Read what ``imports=[...]`` names; the last one counts, as for any key."""
    from penstock.pipeline.config.overrides import quote

    names: list[str] = []
    for text in overrides:
        if text.lstrip("+").startswith("imports="):
            try:
                value = composer.parse(quote(text, composer)).value()
            except HydraException:
                continue  # reported where all overrides are read
            if isinstance(value, str):
                raise ConfigError([
                    Problem("imports", f"{value!r} given, accepts a list; type imports=[{value}]")
                ])  # fmt: skip
            names = [str(name) for name in value] if isinstance(value, list) else []
    return names
