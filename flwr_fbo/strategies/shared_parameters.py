"""Parameters that several strategies have, documented once.

A line ``{space, direction}`` of a tuning strategy's docstring stands for the text of
these parameters. It is inserted as the class is made, for ``help()`` and Sphinx alike.
"""

from __future__ import annotations

import re
from textwrap import indent

_TEXT = """
space : mapping of str to Optuna distribution
    The search space of all agents.
direction : {"maximize", "minimize"}
num_agents : int
    Number N of agents, the slots of the study.
epsilon : float, optional
    Epsilon that the whole study may spend at ``delta``, from 1e-3 to 1e3. The noise is
    computed from it: the smallest noise multiplier for the planned releases.
    ``privacy`` may give the noise in its place.
delta : float, optional
    In (0, 1), and far below 1 / N. Must be given where ``epsilon`` is; else it is the
    published 1 / N^1.1, which is too large for a small federation: 0.17 for five
    agents.
portfolio : sequence of dict or str
    Settings that each site evaluates before its own search, which learns from them:
    after those that the site enqueued, and before the centre or the initial points. A
    list of settings; a learner of `Portfolio.known`; or ``"auto"``, the learner that
    the names in ``space`` decide. By default there are none.
aggregation : SecureAggregation, optional
    How the sites sum their messages, so that the server learns the noisy sum alone.
    Without it the server is trusted: it reads each message and adds the noise.
seeds : Seeds, optional
    Seeds of draws, features and noise; by default the operating system draws them.
metrics : collection of str
    Metrics that clients report, averaged and logged: ``"best-value"`` or nothing. No
    privacy guarantee covers them.
folder, durability, client_api, callbacks
    See `StudyOptions`.
"""

# The text of each entry, by its names as they stand there.
_ENTRIES = {
    entry.partition(" :")[0].partition("\n")[0]: entry
    for entry in re.split(r"\n(?=\S)", _TEXT.strip())
}
_ENTRIES["options"] = _ENTRIES.pop("folder, durability, client_api, callbacks")


def documented(docstring: str | None) -> str | None:
    """Return a class's docstring with the text of the shared parameters."""

    def text(line: re.Match[str]) -> str:
        entries = map(_ENTRIES.__getitem__, line[2].split(", "))
        return indent("\n".join(entries), line[1])

    # Python 3.13 has taken away the indentation.
    marker = re.compile(r"^( *)\{([a-z_, ]+)\}$", re.MULTILINE)
    return docstring and marker.sub(text, docstring)
