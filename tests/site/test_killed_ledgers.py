"""Whenever it is killed, a site's ledger has what the server got of it."""

from __future__ import annotations

import logging
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.privacy.spending_ledger import Charge
from tests.support.killing import NUM_KILLS, killed_in
from tests.support.lost_folders import KINDS, charges_in

# Without coverage, which is faster: others run the same lines.
SLOW = [pytest.mark.slow, pytest.mark.no_cover]


def _play(kind: str, folder: Path) -> None:
    """Play a study, or go on with it; write down what the server got, first."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    sites, start = KINDS[kind](folder)

    class Written(dict[Any, Charge]):
        def __setitem__(self, about: Any, charge: Charge) -> None:
            with (folder / "got").open("ab") as file:
                file.write(pickle.dumps((about, charge)))
            super().__setitem__(about, charge)

    sites.released = Written()
    start(sites)


def _got(folder: Path) -> Counter[Charge]:
    found: dict[Any, Charge] = {}
    path = folder / "got"
    if not path.is_file():
        return Counter()
    with path.open("rb") as file:
        while True:
            try:
                about, charge = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):  # killed while it wrote
                return Counter(found.values())
            found[about] = charge


@pytest.mark.parametrize(
    "num_kills", [2, pytest.param(NUM_KILLS // 2, marks=SLOW)], ids=["few", "many"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_is_never_below_what_has_left(
    tmp_path: Path, kind: str, num_kills: int
) -> None:
    rng, kills, studies = random.Random(kind), 0, 0
    (tmp_path / "whole").mkdir()
    statements = killed_in(None, _play, kind, tmp_path / "whole")
    assert statements is not None
    assert _got(tmp_path / "whole")
    while kills < num_kills:
        folder = tmp_path / f"study-{studies}"
        folder.mkdir()
        studies += 1
        before: list[int | None] = [rng.randrange(statements) for _ in range(9)]
        for most in [*before, None]:  # at last it may end
            was_killed = killed_in(most, _play, kind, folder) is None
            kills += was_killed
            lacking = _got(folder) - Counter(charges_in(folder / "site-1"))
            assert not lacking, f"after {kills} kills"
            if not was_killed:
                break
        assert kills >= studies  # the first one is within the study's statements
        assert _got(folder)
    print(f"{kills} kills in {studies} studies of {kind}")
