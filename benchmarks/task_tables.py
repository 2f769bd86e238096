"""Tables of this package's own tasks, for what replays tables.

    python -m benchmarks.task_tables har results/surfaces

Evaluates a task's objective at public points, the same for all sites, and writes
``TASK.npz`` as those of ``surfaces/`` are: ``X`` in the unit cube, shape (n, D), and
``Y``, shape (sites, n), larger is better. Digits by writer (``emnist``) need the extra
``torch`` and about 15 minutes, ``har`` two, the others one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from scipy.stats.qmc import Sobol

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.emnist import EmnistTask
from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.lab.tasks.landmine import LandmineTask
from flwr_fbo.space.search_space import SearchSpace, move_to_faces

OWN_TABLES = Path("results/surfaces")
# A task, its sites, and the points of its table.
TASKS: dict[str, tuple[Task, int, int]] = {
    "digits": (DigitsTask(), 20, 256),
    "emnist": (EmnistTask(), 40, 128),
    "har": (HarTask(), 30, 256),
    "landmine": (LandmineTask(surface=True), 29, 512),
}


def path_of(name: str) -> Path:
    """Return where a table is: of ``surfaces/``, or of our own."""
    folders = Path(os.environ["FLWR_FBO_DATA"]) / "surfaces", OWN_TABLES
    paths = [folder / f"{name}.npz" for folder in folders]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise SystemExit(f"No table of {name} in {folders[0]}, or in {folders[1]}.")
    return found[0]


def _row(task: Task, site: int, num_sites: int, points: FloatArray) -> list[float]:
    sign = 1.0 if task.direction == "maximize" else -1.0
    objective, space = task.objective(site, num_sites, seed=0), SearchSpace(task.space)
    return [sign * objective(space.from_unit(point)) for point in points]


def main() -> None:
    """Write one table."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    task, num_sites, num_points = TASKS[asked.task]
    task.check(num_sites)
    space, rng = SearchSpace(task.space), np.random.default_rng(0)
    points = Sobol(space.dim, rng=rng).random(num_points)
    # Many best settings lie on faces of the cube, which its corners belong to.
    move_to_faces(points, 0.25, 0.4, rng)
    points = space.snap_discrete(points)
    rows = Parallel(n_jobs=-1)(
        delayed(_row)(task, site, num_sites, points) for site in range(num_sites)
    )
    asked.folder.mkdir(parents=True, exist_ok=True)
    np.savez(asked.folder / f"{asked.task}.npz", X=points, Y=np.array(rows))


if __name__ == "__main__":
    main()
