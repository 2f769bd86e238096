"""The global random states of a process, which each trial has a copy of."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


class RandomStates:
    """The states of Python's, NumPy's and, once it is imported, PyTorch's generators.

    Trials run in turns in one process, and each is to draw what it would draw alone.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 (the user's code draws there)
        self._torch: Any = None
        self._cuda: Any = None
        if torch := sys.modules.get("torch"):
            self._torch = torch.get_rng_state()
            if torch.cuda.is_initialized():
                self._cuda = torch.cuda.get_rng_state_all()

    def restore(self) -> None:
        """Make them the states of the process."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch = sys.modules.get("torch")
        if torch and self._torch is not None:
            torch.set_rng_state(self._torch)
        if torch and self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
