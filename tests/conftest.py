"""Settings of all tests, and their fixtures."""

import gc
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

# Before NumPy is loaded: BLAS threads of tests that run at once wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from flwr_fbo._common.errors import end_of_faults
from tests.support.deployed import federation
from tests.support.engine import flower_home, flwr_run, loopback_only

__all__ = ["federation", "flower_home", "flwr_run", "loopback_only"]

# A slow machine is no failure: speed is measured in benchmarks/, not in tests. And a
# change is not refused for a case that Hypothesis draws only now: its examples are the
# same in each run. `.ci/everything` looks for others: --hypothesis-profile=at-random.
settings.register_profile("the-same", deadline=None, derandomize=True)
settings.register_profile("at-random", deadline=None, print_blob=True)
settings.load_profile("the-same")

MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def new_faults() -> Iterator[None]:
    """Forget the faults of other tests, which would only be counted in this one."""
    yield
    end_of_faults()


@pytest.fixture
def belongs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Return a function that gives a path to another user, also where we are not root.

    Only for this process.
    """
    owners: dict[str, int] = {}
    true_lstat = os.lstat

    def lstat(path: str | Path) -> os.stat_result:
        found = true_lstat(path)
        owner = owners.get(str(path), found.st_uid)
        return os.stat_result((*found[:4], owner, *found[5:]))

    monkeypatch.setattr(os, "lstat", lstat)
    return lambda path, owner: owners.update({str(path): owner})


def pytest_configure() -> None:
    """Make `tmp_path` in memory, where there is enough, and for its owner to write.

    Journals wait for the disk in every call, and some disks take 20 ms for that.
    """
    # Folders that tests make are used as those of sites, which no group may write.
    os.umask(0o022)
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 8 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, a share of them in each worker.

    A worker begins with its share of the list: at the end it would wait for others.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if _is_long(item)]
    fast = [item for item in items if not _is_long(item)]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        end = len(items) * (worker + 1) // workers
        ordered += slow[worker::workers]
        room = end - len(ordered)
        ordered += fast[:room]
        fast = fast[room:]
    items[:] = ordered


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "gate"))


@pytest.fixture(autouse=True, scope="module")
def _few_objects_to_collect() -> None:
    """Let garbage collection pass over what was there before this module's tests.

    Flower collects at each model it reads: half a second, with all that was imported.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what commands do for their process: benchmarks turn logging off."""
    disabled = logging.root.manager.disable
    loggers = [logging.getLogger(name) for name in ("flwr", "flwr.fbo")]
    levels = [logger.level for logger in loggers]
    yield
    logging.disable(disabled)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
