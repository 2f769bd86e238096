"""The bundle that ``flwr-fbo tune`` runs at a federation: the app, and one module."""

from __future__ import annotations

import shutil
from pathlib import Path

from flwr_fbo._common.validation import require
from flwr_fbo._compat import bundled_files
from flwr_fbo.cli.run_config import replaced
from flwr_fbo.privacy.conditions import WITHOUT_TRAINING
from flwr_fbo.privacy.guarantee import Guarantee
from flwr_fbo.tuner.own_app import OwnApp
from flwr_fbo.tuner.tune_settings import TuneSettings

MODULE = "flwr_fbo_tune"

_TEXT = '''"""Written by `flwr-fbo tune`: the app's own server and client, wrapped.

The clients run trials: the app with other values of some keys of its run config. No
other file of the app is changed. What leaves a site is what the app sends{private}.
"""

from flwr_fbo.tuner.tune_settings import tuned_client, tuned_server

SETTINGS = r"""
{settings}
"""

client = tuned_client({client!r})
server = tuned_server({server!r}, SETTINGS, {folder!r})
'''
_PRIVATE = (
    ",\nbut for its metrics, and one bounded ballot at the end of each rung. In all:\n"
    "{}"
)


def write_bundle(app: OwnApp, settings: TuneSettings, folder: Path) -> Path:
    """Write the bundle of an app into a folder, in place of an older one.

    Parameters
    ----------
    app : OwnApp
        Folder of the app.
    settings : TuneSettings
        Settings of the tuning.
    folder : Path
        Of the record; the bundle is in it.

    Returns
    -------
    Path
        The bundle: an app that ``flwr run`` and ``flwr build`` take.

    Raises
    ------
    ValueError
        If the app cannot be bundled.
    """
    try:
        files = bundled_files(app.folder)
    except ValueError as error:  # in several lines
        text = " ".join(str(error).split())
        raise ValueError(f"Flower cannot bundle {app.folder}: {text}") from error
    name = f"{MODULE}.py"
    require(name not in files, "APP", str(app.folder), f"an app without a {name}")
    components = "tool.flwr.app.components."
    project = (app.folder / "pyproject.toml").read_bytes().decode()
    files["pyproject.toml"] = replaced(
        project,
        {
            f"{components}serverapp": f"{MODULE}:server",
            f"{components}clientapp": f"{MODULE}:client",
        },
    ).encode()
    private, choice = "", settings.privacy
    if choice is not None:
        terms = Guarantee(choice.ballots.unit, conditions=(WITHOUT_TRAINING,))
        private = _PRIVATE.format(terms.text(choice.epsilon, choice.delta))
    about = {"client": app.client, "server": app.server, "folder": str(folder)}
    text = _TEXT.format(settings=settings.to_json(), private=private, **about)
    files[name] = text.encode()
    bundle = folder / "bundle"
    if bundle.exists():
        shutil.rmtree(bundle)
    for path, content in files.items():
        target = bundle / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return bundle
