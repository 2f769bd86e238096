"""Published and recomputed figures, in a folder beside that of the data."""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def reference(name: str) -> Any:
    """Return a file's JSON; skip where there is none."""
    folder = os.environ.get("FLWR_FBO_DATA", "")
    path = Path(folder).parent / "reference" / name
    if not folder or not path.exists():
        pytest.skip("FLWR_FBO_DATA has no reference folder beside it")
    return json.loads(path.read_text())
