"""The landmine file that tests of data, tasks and surfaces need."""

import os
from pathlib import Path

import pytest

LANDMINE = Path("landmine", "LandmineData.mat")
needs_landmine = pytest.mark.skipif(
    not Path(os.environ.get("FLWR_FBO_DATA", "/nowhere"), LANDMINE).is_file(),
    reason=f"{LANDMINE} is not in the folder that FLWR_FBO_DATA names",
)
