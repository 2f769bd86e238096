"""Kill clients, sites and servers 100 times each, in the tests that do it 25 times.

Ledgers of four kinds of study are looked at after 200 kills.

    python -m tests.adversaries.kills [--kills 100] [PYTEST OPTION ...]

Each test ends a process with SIGKILL at random instants, starts it again, and checks
that nothing recorded was lost, and no release drawn twice. It takes minutes.

`tests/secure/test_deployment.py` kills in the exchanges of a secure sum.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/tuning/site/test_tuning_site.py::"
    "test_a_client_that_is_killed_repeats_and_loses_nothing",
    "tests/privacy/test_continual_records.py::"
    "test_an_agent_that_is_killed_draws_no_release_twice",
    "tests/bandits/site/test_linear_bandit_site.py::"
    "test_a_site_that_is_killed_repeats_its_releases",
    "tests/strategies/test_resume.py::"
    "test_a_killed_server_never_sends_two_vectors_for_one_round",
    "tests/site/test_killed_ledgers.py::test_a_ledger_is_never_below_what_has_left",
)


def main() -> None:
    """Run the tests; end with pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=100, help="in each test")
    options, of_pytest = parser.parse_known_args()
    tests = [str(ROOT / test) for test in TESTS]
    # In a process of its own: here the number of kills has been read already.
    given = {**os.environ, "FLWR_FBO_NUM_KILLS": str(options.kills)}
    command = [sys.executable, "-m", "pytest", "-s", f"--rootdir={ROOT}"]
    sys.exit(subprocess.run([*command, *of_pytest, *tests], env=given).returncode)


if __name__ == "__main__":
    main()
