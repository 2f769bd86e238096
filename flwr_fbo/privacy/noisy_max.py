"""Report-noisy-max of votes: which candidate has most, and nothing else.

Of counts that one agent changes by one vote it is better than releasing them all with
noise: pure epsilon, whatever the number of candidates (McKenna & Sheldon, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_seed
from flwr_fbo.privacy.budget import check_epsilon
from flwr_fbo.privacy.noise import OsEntropy


class NoisyMax:
    """Chooses one of several candidates by the votes for them.

    Formal guarantees
    -----------------
    Adjacency: two studies are neighbours if they differ in that one agent's vote is
    removed. A choice is epsilon-differentially private, delta = 0: one vote lowers one
    count by 1, so the counts are monotone, and exponential noise of scale 1 / epsilon
    is enough. The noise is OpenDP's, exactly sampled from the operating system's
    entropy. Each agent may have one vote in ``votes``.

    Parameters
    ----------
    epsilon : float
        From 1e-3 to 1e3.
    noise_seed : int, optional
        *Experiments only*: makes the noise repeat, which protects nobody.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If OpenDP is needed and missing; the message names the extra.
    RuntimeError
        If OpenDP's own epsilon is above the one that is asked for.
    """

    def __init__(self, epsilon: float, noise_seed: int | None = None) -> None:
        check_epsilon(epsilon)
        require_seed("noise_seed", noise_seed)
        self.epsilon = float(epsilon)
        self._noise_seed = noise_seed
        if noise_seed is None:
            # They say what is missing or wrong, before any work is done.
            OsEntropy()
            self._mechanism()

    @property
    def private(self) -> bool:
        """Whether its choices are differentially private."""
        return self._noise_seed is None

    def choose(self, iteration: int, counts: Sequence[int]) -> int:
        """Return the candidate with most votes under noise.

        Parameters
        ----------
        iteration : int
            >= 0; chooses the noise where that is seeded.
        counts : sequence of int
            Votes for each candidate, >= 0; at least one candidate.
        """
        require(len(counts) > 0, "counts", counts, "at least one candidate")
        if self._noise_seed is not None:
            rng = generator(self._noise_seed, iteration, Purpose.RELEASE_NOISE)
            noise = rng.exponential(1.0 / self.epsilon, len(counts))
            noisy = [count + drawn for count, drawn in zip(counts, noise, strict=True)]
            return max(range(len(noisy)), key=noisy.__getitem__)
        return int(self._mechanism()(list(map(int, counts))))

    def _mechanism(self) -> Any:
        """Return OpenDP's mechanism, which checks its own epsilon."""
        from opendp.domains import atom_domain, vector_domain
        from opendp.measurements import make_noisy_max
        from opendp.measures import max_divergence
        from opendp.metrics import linf_distance
        from opendp.mod import enable_features

        enable_features("contrib")
        domain = vector_domain(atom_domain(T=int))
        metric = linf_distance(T=int, monotonic=True)
        # A little more noise, so that OpenDP's rounding up stays within epsilon.
        scale = (1.0 + 1e-9) / self.epsilon
        mechanism: Any = make_noisy_max(domain, metric, max_divergence(), scale=scale)
        epsilon = mechanism.map(1)
        if not epsilon <= self.epsilon:
            raise RuntimeError(
                f"OpenDP's noisy max has epsilon {epsilon!r} at scale {scale!r}, and "
                f"{self.epsilon!r} is promised: nothing is released."
            )
        return mechanism
