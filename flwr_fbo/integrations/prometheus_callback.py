"""Prometheus: a text file for each study, which node_exporter hands on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_fbo._common.validation import check_folder
from flwr_fbo.study.callbacks import Callback, DecidedRung, Round, Started

# What each metric says; all are gauges. A FederationTuner has rungs in place of rounds.
_METRICS = {
    "flwr_fbo_rounds_done": "Rounds that are done.",
    "flwr_fbo_rounds_planned": "Rounds of the whole study.",
    "flwr_fbo_rungs_done": "Rungs that are decided.",
    "flwr_fbo_agents": "Agents of the last round, by how they answered.",
    "flwr_fbo_round_seconds": "Seconds that the last round, or rung, has taken.",
    "flwr_fbo_epsilon": "Epsilon spent so far, under the terms that are labels.",
    "flwr_fbo_state": "1 for the state that the study is in.",
    "flwr_fbo_updated_timestamp_seconds": "When the study was last heard of.",
}
_ANSWERS = ("answered", "failed", "late", "absent")
_STATES = ("running", "finished", "failed")
_NO_LABELS: Mapping[str, str] = {}


class PrometheusCallback(Callback):
    """Writes a text file of metrics for the textfile collector of node_exporter.

    A ServerApp's process ends with its run, so that nothing would be left to scrape at
    an address of its own. The file stays: that last night's study failed is still there
    in the morning. It is written anew, at once, after each round or rung.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, Host, InProcessGrid, tuning_app
    >>> from flwr_fbo.integrations import PrometheusCallback
    >>> folder = tempfile.mkdtemp()
    >>> strategy = FedVote(
    ...     space={"x": FloatDistribution(0, 1)},
    ...     direction="maximize",
    ...     num_agents=4,
    ...     epsilon=2,
    ...     delta=1e-3,
    ... )
    >>> app = tuning_app(lambda context: lambda trial: trial.suggest_float("x", 0, 1))
    >>> host = Host(callbacks=[PrometheusCallback(folder)])
    >>> grid = InProcessGrid(app, num_nodes=4)
    >>> result = strategy.start(grid, num_rounds=2, host=host)
    >>> [file] = Path(folder).glob("*.prom")
    >>> "flwr_fbo_rounds_done" in file.read_text()
    True

    Parameters
    ----------
    folder : str or Path
        An absolute path, as for node_exporter's ``--collector.textfile.directory``. It
        must exist.

    Raises
    ------
    ValueError
        If the folder is not an absolute path of a folder that exists.
    """

    def __init__(self, folder: str | Path) -> None:
        checked = check_folder("folder", folder)
        if checked is None or not checked.is_dir():
            expected = "an absolute path of a folder that exists"
            raise ValueError(f"folder={folder!r} is not allowed: {expected}.")
        self.folder = checked
        self._began = 0.0
        self._labels: dict[str, str] = {}
        self._terms: dict[str, str] = {}
        # By metric and its further labels.
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def on_start(self, started: Started) -> None:
        """Write that the study runs."""
        self._labels = {"study": started.study, "method": started.method}
        self._began, self._values = time.monotonic(), {}
        self._terms = {}
        for name, value in started.terms.items():
            text = ", ".join(value) if name == "conditions" else f"{value}"
            self._terms |= {name: text} if value else {}
        if started.method == "FederationTuner":
            self._set("flwr_fbo_rungs_done", started.num_done)
        else:
            self._set("flwr_fbo_rounds_done", started.num_done)
            planned = started.settings.get("num_rounds")
            self._set("flwr_fbo_rounds_planned", planned)
        self._write("running")

    def on_round(self, finished: Round) -> None:
        """Write how the agents answered, and the epsilon."""
        self._set("flwr_fbo_rounds_done", finished.server_round)
        for answer in _ANSWERS:
            number = getattr(finished, answer)
            self._set("flwr_fbo_agents", number, {"answer": answer})
        self._set_epsilon(finished.epsilon)
        self._end_of_round()

    def on_rung(self, decided: DecidedRung) -> None:
        """Write the number of the rung, and the epsilon."""
        self._set("flwr_fbo_rungs_done", decided.number)
        self._set_epsilon(decided.epsilon)
        self._end_of_round()

    def on_error(self, error: BaseException) -> None:
        """Write that the study has failed."""
        self._write("failed")

    def on_end(self, result: Any) -> None:
        """Write that the study is complete."""
        spent = result.privacy_spent
        self._set_epsilon(None if spent is None else spent.epsilon)
        self._write("finished")

    def _end_of_round(self) -> None:
        now = time.monotonic()
        self._set("flwr_fbo_round_seconds", now - self._began)
        self._began = now
        self._write("running")

    def _set_epsilon(self, value: float | None) -> None:
        self._set("flwr_fbo_epsilon", value, self._terms)

    def _set(
        self, metric: str, value: float | None, labels: Mapping[str, str] = _NO_LABELS
    ) -> None:
        """Set a metric; what is not known or infinite is left out, as before."""
        if value is not None and math.isfinite(value):
            self._values[metric, tuple(labels.items())] = value

    def _write(self, state: str) -> None:
        """Write the file at once: node_exporter must not read a part of it."""
        for known in _STATES:
            self._set("flwr_fbo_state", int(known == state), {"state": known})
        self._set("flwr_fbo_updated_timestamp_seconds", time.time())
        lines = []
        for metric, text in _METRICS.items():
            found = {k: v for k, v in self._values.items() if k[0] == metric}
            if found:
                lines += [f"# HELP {metric} {text}", f"# TYPE {metric} gauge"]
            for (_, more), value in found.items():
                labels = {**self._labels, **dict(more)}
                said = ",".join(
                    f'{name}="{text.translate(_ESCAPES)}"'
                    for name, text in labels.items()
                )
                lines.append(f"{metric}{{{said}}} {value!r}")
        name = f"flwr_fbo-{self._labels['method']}-{self._labels['study']}"
        new = self.folder / f"{name}.tmp"
        new.write_text("\n".join(lines) + "\n")
        new.chmod(0o644)  # node_exporter is another user
        os.replace(new, self.folder / f"{name}.prom")


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
