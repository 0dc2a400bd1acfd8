"""Groups and their options: YAML files, and components that Hydra learns from their signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from penstock.core import registry
from penstock.core.registry import Component
from penstock.core.user_errors import Problem
from penstock.pipeline.config.errors import ConfigError

CONF = Path(__file__).resolve().parents[2] / "conf"

STACK_OF = {"transform": "augment.train", "batch_transform": "augment.device"}
"""Stacks to which the option of a transform adds its step: ``transform=resize``."""
SIDE_BY_SIDE = ("callback", "logger", *STACK_OF)
"""Groups whose options add to one another: ``callback=ema callback=profile``."""


class OwnFolder(SearchPathPlugin):
    """Puts a folder of the user's before ours."""

    folder: Path | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder to Hydra's search path."""
        if self.folder is not None:
            search_path.prepend("user", f"file://{self.folder}", SearchPathQuery("main"))


Plugins.instance().register(OwnFolder)
_stored: dict[tuple[str, str], Component] = {}


def search_in(config_dir: str | Path | None) -> None:
    """Choose the user's folder of options; None takes ``conf`` of the working directory, if any.

    Raises:
        ConfigError: `config_dir` is not a folder.
    """
    folder = Path(config_dir or "conf").expanduser()
    if config_dir and not folder.is_dir():
        raise ConfigError([Problem("--config-dir", f"no folder {str(folder)!r}")])
    found = folder.resolve() if folder.is_dir() else None
    OwnFolder.folder = None if found == CONF else found


def store_options() -> None:
    """Give each registered component that has no YAML file its option."""
    for (group, name), component in _registered().items():
        known = _stored.get((group, name)) is component
        if not known and option_file(group, name) is None:
            node = _option(group, component)
            package = STACK_OF.get(component.group)
            ConfigStore.instance().store(name, node, group=group, package=package)
            _stored[group, name] = component


def _option(group: str, component: Component) -> dict[str, Any]:
    """Write the option of a component as a YAML file of its group would."""
    if component.group == "storage" and group == "dataset":
        parts: list[Any] = [{"storage": component.name}, {"decode": "image"}]
        parts += [{"cache": None}, {"annotations": None}, "_self_"]
        return {"defaults": parts, "_target_": "dataset/map"}
    if component.group == "engine":
        return {"_target_": "settings/loader", "engine": component.name}
    node = registry.option_node(component)
    if component.group == "logger":  # loggers stand side by side, by name; csv always
        return {"defaults": ["csv", "_self_"], component.name: node}
    return {component.name: node} if component.group in SIDE_BY_SIDE else node


def _registered() -> dict[tuple[str, str], Component]:
    """Map groups and names to registered components; a storage is an option of ``dataset`` too."""
    found = {}
    for component in registry.components():
        if (group := registry.GROUPS[component.group].option_group) is not None:
            found[group, component.name] = component
        if component.group == "storage":
            found["dataset", component.name] = component
    return found


def _folders() -> list[Path]:
    return [folder for folder in (OwnFolder.folder, CONF) if folder is not None]


def option_file(group: str, option: str) -> Path | None:
    """Find the YAML file of an option; None for a component without one."""
    files = (folder / group / f"{option}.yaml" for folder in _folders())
    return next((file for file in files if file.is_file()), None)


def options_of(group: str) -> list[str]:
    """List the options of a group."""
    files = {file.stem for folder in _folders() for file in (folder / group).glob("*.yaml")}
    return sorted(files | {name for owner, name in _registered() if owner == group})


def groups() -> list[str]:
    """List the groups that have options."""
    files = {str(file.parent.relative_to(folder))
             for folder in _folders() for file in folder.glob("*/**/*.yaml")}  # fmt: skip
    return sorted(files | {group for group, _ in _registered()})
