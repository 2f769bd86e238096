"""Kill clients, sites and servers 100 times each, in the tests that do it 25 times.

    python -m tests.adversaries.kills [--kills 100] [PYTEST OPTION ...]

Each test ends a process with SIGKILL at random instants, starts it again, and checks
that nothing recorded was lost, and no release drawn twice. It takes minutes.

`tests/test_secure_deployment.py` kills in the exchanges of a secure sum.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "clients/test_tuning_site.py::test_a_client_that_is_killed_repeats_and_loses_nothing",
    "privacy/test_recorded_releases.py::test_an_agent_that_is_killed_draws_no_release_twice",
    "clients/test_linear_bandit_client.py::test_a_site_that_is_killed_repeats_its_releases",
    "strategies/test_resume.py::test_a_killed_server_never_sends_two_vectors_for_one_round",
)


def main() -> None:
    """Run the tests; end with pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=100, help="in each test")
    options, of_pytest = parser.parse_known_args()
    os.environ["FLWR_FBO_NUM_KILLS"] = str(options.kills)
    tests = [str(ROOT / "tests" / test) for test in TESTS]
    sys.exit(pytest.main(["-s", f"--rootdir={ROOT}", *of_pytest, *tests]))


if __name__ == "__main__":
    main()
