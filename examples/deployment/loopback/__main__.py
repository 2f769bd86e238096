"""``python -m loopback``: bring a federation up, run the study, take it down."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np

from flwr_fbo.lab.datasets.digits import partition
from loopback.federation import Federation

APP = Path(__file__).parents[1] / "app"
NUM_SITES = 3


def write_data(folder: Path, site: int) -> Path:
    """Write a site's share of scikit-learn's digits, in place of data of its own."""
    path = folder / "data.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, **vars(partition(site, NUM_SITES, 0)))
    return path


def node_config(folder: Path, site: int) -> dict[str, str | int]:
    """Return the node config of a site that keeps data and journal in its folder."""
    return {
        "agent-id": site,
        "data": str(write_data(folder, site)),
        "fbo-folder": str(folder / "journal"),
    }


def main() -> int:
    """Run one study of a folder, or go on with it."""
    parser = argparse.ArgumentParser(prog="python -m loopback", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("federation"),
        help="keys, logs, journals and the study's record (default: ./federation)",
    )
    parser.add_argument(
        "--num-rounds", type=int, default=3, help="of the study (default: 3)"
    )
    arguments = parser.parse_args()
    if arguments.folder.resolve().is_relative_to(APP.resolve()):
        parser.error(
            f"--folder={arguments.folder} is not allowed: outside of {APP}, which "
            "Flower sends to the sites as it is"
        )
    os.umask(0o077)  # a site uses no folder that its group may write
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops what it started
    try:
        with Federation(arguments.folder) as federation:
            return run_study(federation, arguments.num_rounds)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The same command goes on with the study.", file=sys.stderr)
        return 130


def run_study(federation: Federation, num_rounds: int) -> int:
    """Start everything, and run one study; return 0 if it is complete."""
    print(f"Starting SuperLink and {NUM_SITES} SuperNodes on 127.0.0.1 ...", flush=True)
    federation.start_superlink()
    sites = {
        f"site-{site}": node_config(federation.folder / f"site-{site}", site)
        for site in range(NUM_SITES)
    }
    for name, config in sites.items():
        federation.register(name)
        federation.start_supernode(name, config)
    for name, config in sites.items():
        federation.await_supernode(name, config)
    record = federation.folder / "record"
    status = federation.run(APP, f'num-rounds={num_rounds} record="{record}"')
    print(f"The run is {status}.")
    print(f"Keys, logs, journals and the study's record: {federation.folder}")
    return 0 if status == "finished:completed" else 1


if __name__ == "__main__":
    sys.exit(main())
