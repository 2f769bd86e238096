"""What a process has loaded: a deployment begins one for each message of a client."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.startup import answer, asked, instruction
from tests.support.public import public_names

# What Optuna's distributions bring along.
OPTUNA = {"colorlog", "optuna", "packaging", "tqdm"}
LOADS = {
    "tuning_app": OPTUNA,
    "with_tuning": OPTUNA,
    "add_tuning": OPTUNA,
    "tuner_mod": OPTUNA,
    "linear_bandit_app": set(),
    "bandits.neural_bandit_app": set(),
    "DPFTSDE": OPTUNA,
    "FTS": OPTUNA,
    "FedVote": OPTUNA,
    "FedWarmStart": OPTUNA,
    "FedUCB": OPTUNA,
    "DecentralizedFedUCB": OPTUNA,
    "FedGOUCB": OPTUNA,
    "FederationTuner": OPTUNA,
}
# One process, of which others are copies: importing Flower is most of the time.
IN_COPIES = """
import os, pkgutil, sys
import flwr.clientapp, flwr.serverapp
import flwr_fbo
of_flower = set(sys.modules)
for name in sys.argv[1:]:
    process = os.fork()
    if not process:
        pkgutil.resolve_name("flwr_fbo." + name)
        print(name, *(set(sys.modules) - of_flower), flush=True)
        os._exit(0)
    os.waitpid(process, 0)
"""
ALONE = """
import sys
import flwr_fbo
print("alone", *sys.modules)
{}
print("all", *sys.modules)
"""
CLIENT = """
from flwr_fbo import tuning_app

app = tuning_app(lambda context: lambda trial: -trial["C"])
"""


def _loaded(code: str, *arguments: str) -> dict[str, set[str]]:
    """Return what each line of a program's output names after its first word."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return {name: set(modules) for name, *modules in lines}


def _of_others(modules: set[str]) -> set[str]:
    """Return the packages of modules that are not Python's own, nor ours, nor Flower's.

    Of SciPy the second level.
    """
    # All that Flower loads at least a part of.
    own = {"cryptography", "flwr", "flwr_fbo", "numpy", *sys.stdlib_module_names}
    packages: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        top, *below = module.split(".")
        packages[top].update(below[:1])
    tops = {top for top in packages if top[0] != "_"} - own
    scipy = {f"scipy.{name}" for name in packages["scipy"] if name[0] != "_"}
    return {*(tops - {"scipy"}), *(scipy - {"scipy.version"})}


def test_a_name_loads_only_what_it_needs_before_it_works() -> None:
    loaded = _loaded(IN_COPIES, *LOADS)
    found = {name: _of_others(modules) for name, modules in loaded.items()}
    assert found.keys() == LOADS.keys()
    more = {name: found[name] - LOADS[name] for name in LOADS}
    assert {name: packages for name, packages in more.items() if packages} == {}


def test_the_package_and_its_public_names_are_cheap() -> None:
    names = list(public_names())
    loaded = _loaded(
        ALONE.format(f"import pkgutil; [*map(pkgutil.resolve_name, {names})]")
    )
    assert _of_others(loaded["alone"]) == set()
    assert "flwr" not in loaded["alone"]
    heavy = {"ray", "torch", "matplotlib", "opendp", "sklearn", "pandas"}
    assert not heavy & _of_others(loaded["all"])


def test_a_message_without_a_release_loads_no_model(tmp_path: Path) -> None:
    """An enrolment, and a round with the first evaluation."""
    (tmp_path / "plain_client.py").write_text(CLIENT)
    site = tmp_path / "site.npz"
    messages = [asked(instruction(phase), site) for phase in ("enrol", "round")]
    loaded = answer("plain_client", messages, tmp_path)
    assert _of_others(loaded) <= {*OPTUNA, "plain_client"}
    parts = {module for module in loaded if module.startswith("flwr_fbo.")}
    assert "flwr_fbo.tuning.fed_vote.agent" in parts
    of_releases = {"accounting", "loss_distribution", "noise"}
    assert not parts & {f"flwr_fbo.privacy.{name}" for name in of_releases}
    models = {"features", "matern_gp", "thompson_gp"}
    assert not parts & {f"flwr_fbo.models.{name}" for name in models}


# A simulation's ServerApp runs in one thread while another imports the ClientApp: here
# the second is held up in the middle of scipy.stats.
TWO_THREADS = """
import sys, threading
from flwr_fbo._common.random import generator, sobol_points
half_way, failed = threading.Event(), []

class Pause:
    def find_spec(self, name, path=None, target=None):
        if name == "scipy.stats._multicomp" and not half_way.is_set():
            half_way.set()
            server.join(1.0)

def import_app():
    try:
        import scipy.stats
    except ImportError as error:
        failed.append(error)

def work():
    half_way.wait()
    sobol_points(2, 3, generator(1, 2))

sys.meta_path.insert(0, Pause())
client, server = threading.Thread(target=import_app), threading.Thread(target=work)
client.start(), server.start(), client.join(), server.join()
print("failed", *failed)
"""


def test_a_server_may_work_while_its_clients_import() -> None:
    assert _loaded(TWO_THREADS) == {"failed": set()}


def test_a_server_loads_nothing_of_its_clients() -> None:
    loaded = _loaded(
        "import sys; from optuna.distributions import FloatDistribution as F; import "
        "flwr_fbo; s = flwr_fbo.FedVote({'x': F(0, 1)}, 'maximize', 9, epsilon=2, "
        "delta=1e-3); s.plan(9); s.server.receive(s.server.step(1), {}); "
        "print('all', *sys.modules)"
    )
    assert "opendp" in loaded["all"]
    assert not loaded["all"] & {"sklearn", "torch", "pandas", "matplotlib"}
