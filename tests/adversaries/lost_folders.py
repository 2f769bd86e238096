"""Harm a site's folder at 50 random places of each kind of study.

    python -m tests.adversaries.lost_folders [--points 50] [--seed 0] [KIND ...]

The folder is lost, restored as it was some messages ago, exchanged with another site's,
or a clone of it is used in turn; with or without a restart of the SuperNode. The site
recovers later, or at the end. What the server has got must be in the site's ledger
after that, nothing may be got before, and the log must say what to do. It takes about
ten minutes. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.errors import end_of_faults
from tests.support.lost_folders import (
    KINDS,
    Sites,
    anothers,
    copying,
    lose,
    older,
    recover,
    said,
    server_receipts,
)

HARMS = ("lose", "older", "anothers", "clone")
# Messages that the site is sent in a whole study of each kind.
MESSAGES = {"tuning": 6, "linear": 4, "neural": 9, "tuner": 11}


def play(kind: str, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Play one study in which a site is harmed; return how, and what went wrong."""
    sites, start = KINDS[kind](folder)
    copies = copying(sites, folder / "copies")
    harm, at = rng.choice(HARMS), rng.randint(2, MESSAGES[kind])
    age, restarts = rng.randint(1, at - 1), rng.random() < 0.3
    later = rng.choice([1, 2, 100])
    what = f"{kind}: {harm} at {at}, age {age}, restart {restarts}, recover {later}"
    wrong: list[str] = []
    copy = sites.harms[at]
    clone = folder / "clone"

    def do_harm(sites: Sites) -> None:
        copy(sites)
        if harm == "lose":
            lose(sites)
        elif harm == "anothers":
            anothers(sites)
        elif harm == "older":
            older(age, copies)(sites)
        else:  # it was cloned then, and the clone takes its place
            shutil.copytree(copies[at - age], clone)
            [node] = sites.nodes
            sites.contexts[node].node_config["fbo-folder"] = str(clone)
            sites.folders[1] = clone
        if restarts:
            sites.restart()
        lacking, got = sites.lacking(), len(sites.released)

        def look(sites: Sites) -> None:
            """Before each later message, until it has recovered."""
            if lacking and len(sites.released) > got:
                wrong.append("the server got more of a site that lacks charges")

        for number in range(at + 1, at + later):
            sites.harms[number] = look

        def look_and_recover(sites: Sites) -> None:
            look(sites)
            recover(sites.folder)

        sites.harms[at + later] = look_and_recover
        state.append(bool(lacking))

    end_of_faults()  # each study has processes of its own
    state: list[bool] = []
    sites.harms[at] = do_harm
    with logged() as lines:
        try:
            start(sites)
        except AggregationError as error:  # all others have ended too
            wrong.append(str(error))
        text = "\n".join(lines)
    if state != [True]:
        lacks = sites.lacking()
        return what, [*wrong, *([f"it lacks {lacks}"] if lacks else [])]
    # A tuner knows a site again that has come back by its first reply.
    unheard = at + restarts if kind == "tuner" else at
    if sites.asked > unheard and not said(text, sites.folder):
        wrong.append("the log does not say what to do")
    receipts = server_receipts(folder / "server", folder / "receipts.json")
    recover(sites.folder, receipts)
    if lacks := sites.lacking():
        wrong.append(f"after the recovery it lacks {lacks}")
    return what, wrong


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what is logged."""
    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, handler = logging.getLogger("flwr.fbo"), Keeping(logging.INFO)
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def main() -> None:
    """Play all studies; end with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--points", type=int, default=50, help="of each kind of study")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    for name in ("flwr", "flwr.fbo"):
        logging.getLogger(name).handlers.clear()
    failed = 0
    for kind in options.kinds or KINDS:
        rng = random.Random(options.seed)
        for _ in range(options.points):
            with tempfile.TemporaryDirectory() as folder:
                what, wrong = play(kind, rng, Path(folder))
            failed += bool(wrong)
            for one in wrong:
                print(f"WRONG: {what}: {one}")
        print(f"{kind}: {options.points} studies, {failed} wrong so far")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
