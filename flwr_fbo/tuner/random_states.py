"""The global random states of a process, of which each trial has its own."""

from __future__ import annotations

import random
import sys
from typing import Any, Self

import numpy as np

_MT19937_WORDS = 8


class RandomStates:
    """The states of Python's, NumPy's and, once it is imported, PyTorch's generators.

    Trials run in turns in one process, and what one draws does not depend on others.
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

    @classmethod
    def drawn(cls) -> Self:
        """Return new states, drawn from those of the process, which have moved on.

        Two trials with the same states would train with the same noise, and where that
        protects the clients its difference would be known: none.
        """
        python = random.getrandbits(128)
        numpy = np.random.randint(0, 2**32, _MT19937_WORDS, np.uint32)  # noqa: NPY002
        torch = sys.modules.get("torch")
        seed = int(torch.randint(2**62, ()).item()) if torch else 0
        before = cls()
        random.seed(python)
        np.random.seed(numpy)  # noqa: NPY002
        if torch:
            torch.manual_seed(seed)  # CUDA's generators too
        states = cls()
        before.restore()
        return states

    def restore(self) -> None:
        """Make them the states of the process."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch = sys.modules.get("torch")
        if torch and self._torch is not None:
            torch.set_rng_state(self._torch)
        if torch and self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
