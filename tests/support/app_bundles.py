"""What `tests/test_app_bundles.py` and others share."""

import tomllib
from pathlib import Path
from typing import Any


def read_project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())
