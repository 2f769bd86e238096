"""Where ``flwr-fbo tune`` keeps its records, and of which state of an app they are."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

from flwr_fbo._common.text import counted, write_whole
from flwr_fbo._compat import bundled_files
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.tuner.records.trials_record import FILE_NAME, has_begun, recorded_spent

# Of the records, in the user's home: others may be able to write where an app is.
_FOLDER = Path(".flwr-fbo") / "tune"
_FILES = "app-files.json"
_WRITTEN = "written-files.json"
# The tuner itself refuses another run config; texts are no part of a training.
_NOT_CODE = (".md", "pyproject.toml", "LICENSE")


def record_folder(app: Path, settings: str) -> Path:
    """Return the folder of an app's record with these settings, if none is given.

    The settings are a text: how it is tuned, and the run config that was given.
    """
    digest = hashlib.sha256(f"{app} {settings}".encode()).hexdigest()[:8]
    return Path.home() / _FOLDER / f"{app.name}-{digest}"


def check_no_app(folder: Path) -> None:
    """Raise ValueError if a folder is a Flower app's: it says where its records are."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        project["tool"]["flwr"]["app"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    kept = Path.home() / _FOLDER
    records = sorted(
        (path for path in kept.glob(f"{folder.resolve().name}-*") if has_begun(path)),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    text = f"{folder} is an app, and not a record. `flwr-fbo tune` keeps "
    if not records:
        raise ValueError(f"{text}those in {kept}, or in --folder: none is of this app.")
    names = ", ".join(map(str, records))
    raise ValueError(f"{text}its records, the latest first, in {names}.")


def note_files(app: Path, folder: Path) -> None:
    """Note in a record's folder of which files the app is, unless it has begun."""
    if not has_begun(folder):
        values = {"app": str(app), "files": _digests(app)}
        write_whole(folder / _FILES, json.dumps(values, indent=1))


def recorded_code(folder: Path) -> str:
    """Return the SHA-256 of an app's files, as noted when a record began; or nothing.

    Of a text with a line for each file: its own SHA-256, two spaces, and its path.
    """
    if not (folder / _FILES).is_file():
        return ""
    files = json.loads((folder / _FILES).read_text())["files"]
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"SHA-256 {digest} of {counted(len(files), 'file')}"


def note_written(folder: Path, since: float) -> None:
    """Note which files the app has written where the command was run."""
    here = Path.cwd()
    names = [
        path.name
        for path in sorted(here.iterdir())
        if path.is_file() and path.stat().st_mtime >= since
    ]
    if names:
        values = {"folder": str(here), "files": names}
        write_whole(folder / _WRITTEN, json.dumps(values))


def written_files(folder: Path) -> tuple[str, list[str]] | None:
    """Return the folder and the names that `note_written` has noted, if any."""
    file = folder / _WRITTEN
    if not file.exists():
        return None
    values = json.loads(file.read_text())
    return values["folder"], values["files"]


def spent_before(app: Path, folder: Path) -> list[PrivacySpent]:
    """Return what each private tuning of an app has spent, but for that in a folder.

    As far as their records are where this command keeps them.
    """
    found = []
    for other in sorted((Path.home() / _FOLDER).glob(f"{app.name}-*")):
        file = other / _FILES
        if other == folder or not has_begun(other) or not file.exists():
            continue
        if json.loads(file.read_text())["app"] != str(app):
            continue
        try:
            with Journal.snapshot(other / FILE_NAME) as journal:
                rows = journal.ledger()
                spent = recorded_spent(journal.identity, rows) if rows else None
        except JournalError:
            continue
        if spent is not None:
            found.append(spent)
    return found


def changed_files(app: Path, folder: Path) -> list[str]:
    """Return which files of an app have changed since a tuning began, in words."""
    file = folder / _FILES
    if not has_begun(folder) or not file.exists():
        return []
    then, now = json.loads(file.read_text())["files"], _digests(app)
    words = dict.fromkeys(now.keys() - then.keys(), "new")
    words |= dict.fromkeys(then.keys() - now.keys(), "gone")
    both = then.keys() & now.keys()
    words |= {name: "changed" for name in both if then[name] != now[name]}
    return [f"{name} ({word})" for name, word in sorted(words.items())]


def _digests(app: Path) -> dict[str, str]:
    """Return digests of an app's files, but for texts and settings, by path."""
    try:
        files = bundled_files(app)
    except ValueError:  # Flower would not run it; in this process it can be run
        return {}
    return {
        name: hashlib.sha256(content).hexdigest()
        for name, content in sorted(files.items())
        if not name.endswith(_NOT_CODE)
    }
