"""Tools of a researcher: data sets, tasks, simulators, experiments, audits.

Nothing outside imports it but the commands that need it, when they are called.
"""

from importlib.util import find_spec as _find_spec

# Not imported: a client that reads a data set does without most of them.
for _name in ("platformdirs", "pydantic", "requests", "sklearn"):
    if _find_spec(_name) is None:
        raise ImportError(
            f"Experiments, data sets and audits need {_name}, which is not installed: "
            "pip install 'flwr-fbo[lab]'"
        )
