"""Kill clients, sites and servers 100 times each, in the tests that do it 25 times.

    python -m tests.adversaries.kills [--kills 100] [PYTEST OPTION ...]
    python -m tests.adversaries.kills --secure [PYTEST OPTION ...]

Each test ends a process with SIGKILL at random instants, starts it again, and checks
that nothing recorded was lost, and no release drawn twice. It takes minutes.

With ``--secure`` two of three sites of a deployment are killed in each of the five
exchanges of a secure sum, and in the last one the ServerApp too. Each row says how it
ended. It needs an environment that has only the loopback interface.
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
SECURE_TESTS = ("test_secure_deployment.py",)


def main() -> None:
    """Run the tests; end with pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=100, help="in each test")
    parser.add_argument(
        "--secure", action="store_true", help="kill in secure sums of a deployment"
    )
    options, of_pytest = parser.parse_known_args()
    os.environ["FLWR_FBO_NUM_KILLS"] = str(options.kills)
    os.environ["FLWR_FBO_KILL_IN_EXCHANGES"] = "1 2 3 4 5"
    os.environ["FLWR_FBO_REQUIRE_ENGINE"] = "1"  # a test that is skipped has failed
    chosen = SECURE_TESTS if options.secure else TESTS
    tests = [str(ROOT / "tests" / test) for test in chosen]
    sys.exit(pytest.main(["-s", f"--rootdir={ROOT}", *of_pytest, *tests]))


if __name__ == "__main__":
    main()
