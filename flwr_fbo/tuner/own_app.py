"""A Flower app as it is: read from its folder, and wrapped without a change.

The ServerApp becomes the `main` of a `FederationTuner`, and the ClientApp gets
`tuner_mod` before its own mods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.validation import require
from flwr_fbo._compat import AroundClient, checked_project, flat_config, main_of
from flwr_fbo.tuner.site.client_mod import tuner_mod
from flwr_fbo.tuner.trials.trial_grid import Main

App = TypeVar("App", ServerApp, ClientApp)


class AppError(PublicError, RuntimeError):
    """The app cannot be loaded, or has failed."""


@dataclass(frozen=True)
class OwnApp:
    """An app, by what its ``pyproject.toml`` says.

    Attributes
    ----------
    folder : Path
        Folder of the app.
    server, client : str
        The components, as ``module:name``.
    run_config : dict
        The app's defaults, flat.
    options : dict
        What is below ``[tool.flwr-fbo.tune]``.
    num_supernodes : int or None
        Of the federation in the same file.
    """

    folder: Path
    server: str
    client: str
    run_config: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    num_supernodes: int | None = None

    @classmethod
    def read(cls, folder: Path) -> OwnApp:
        """Return the app in a folder; nothing of it is run.

        Raises
        ------
        ValueError
            If there is no app that Flower would run.
        """
        file = folder / "pyproject.toml"
        require(file.is_file(), "APP", str(folder), "a folder with a pyproject.toml")
        try:
            values = checked_project(folder)
        except Exception as error:  # of many kinds: a file may be anything
            text = " ".join(str(error).split())
            raise ValueError(f"{file} is not that of a Flower app: {text}") from error
        tool = values["tool"]
        app, components = tool["flwr"]["app"], tool["flwr"]["app"]["components"]
        # The default federation of older apps says how many nodes it simulates.
        number = None
        federations = tool["flwr"].get("federations", {})
        if isinstance(federations, dict):
            chosen = federations.get(federations.get("default"))
            options = chosen.get("options", {}) if isinstance(chosen, dict) else {}
            number = options.get("num-supernodes")
        return cls(
            folder.resolve(),
            components["serverapp"],
            components["clientapp"],
            flat_config(app.get("config", {})),
            tool.get("flwr-fbo", {}).get("tune", {}),
            number if type(number) is int and number > 0 else None,
        )

    def main(self) -> Main:
        """Return what the ServerApp does; it is loaded now, and anew in each call."""
        component(self.server, ServerApp, self.folder)
        return fresh_main(self.server)

    def client_app(self) -> ClientApp:
        """Return the ClientApp as it is; it is loaded now."""
        return component(self.client, ClientApp, self.folder)


def with_tuner_mod(load: Callable[[], ClientApp]) -> ClientApp:
    """Return a ClientApp that runs trials of another one, which stays as it is."""
    return AroundClient(load, tuner_mod)


def fresh_main(reference: str) -> Main:
    """Return what a ServerApp does, with modules of its own in each call.

    As in a process of its own: an app may keep in a module what only one run can use,
    as the path of a file of results. What it imports from elsewhere is shared, and so
    is a package that can be loaded only once.

    Parameters
    ----------
    reference : str
        As ``module:name``; it can be imported.
    """
    package = reference.partition(":")[0].partition(".")[0]

    def main(grid: Grid, context: Context) -> Any:
        known = _taken_out(package)
        app: ServerApp | None
        try:
            app = component(reference, ServerApp)
        except AppError:  # a name that it registers elsewhere is taken, for example
            app = None
        finally:
            _taken_out(package)
            sys.modules.update(known)
        return main_of(app or component(reference, ServerApp))(grid, context)

    return main


def _taken_out(package: str) -> dict[str, ModuleType]:
    """Take a package out of what is imported; return its modules."""
    names = [name for name in sys.modules if name.partition(".")[0] == package]
    return {name: sys.modules.pop(name) for name in names}


def component(reference: str, kind: type[App], folder: Path | None = None) -> App:
    """Return a component of an app.

    Parameters
    ----------
    reference : str
        As ``module:name``.
    kind : type
        What it has to be.
    folder : Path, optional
        Of the app, where its modules are not importable yet.

    Raises
    ------
    AppError
        If it cannot be loaded; the message says why.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module, _, names = reference.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except Exception as error:  # whatever the app's modules raise
        text = f"{type(error).__name__}: {error}"
        raise AppError(f"{reference} of the app cannot be loaded: {text}") from error
    if not isinstance(found, kind):
        raise AppError(f"{reference} is a {type(found).__name__}, no {kind.__name__}")
    return found
