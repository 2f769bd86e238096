"""Ballots with noise, that the server adds: it is trusted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee, delta_warning
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.tuner.choosers.chooser import Chooser, Comparison
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.site.ballots import capped

_log = logging.getLogger("flwr.fbo")


class NoisyChooser(Chooser):
    """Base of the choosers that release noisy sums of ballots: see `PrivateChoice`.

    Parameters
    ----------
    settings : PrivateChoice
        Budget of all rungs together.
    num_clients : int
        N >= 1, by which the sums are divided, whoever answers.
    num_rungs : int
        R >= 1, the releases that share epsilon.

    Attributes
    ----------
    private : bool
        Whether its choices are differentially private.
    """

    adds_noise = True
    private = True

    def __init__(
        self, settings: PrivateChoice, num_clients: int, num_rungs: int
    ) -> None:
        super().__init__(num_clients)
        self.settings = settings
        self._num_rungs = num_rungs
        self._planned = ReleaseSettings(
            num_agents=num_clients,
            clip_norm=1.0,
            # All rungs together keep epsilon: their releases compose.
            noise_multiplier=calibrate_noise_multiplier(
                settings.epsilon, settings.delta, 1.0, num_rungs
            ),
            sampling_probability=1.0,
            noise_only=settings.noise_only,
            # Without a peak each client weighs 1 / N: the release is a mean.
            weights=WeightSchedule(peak=0.0),
        )

    def say(self) -> None:
        """Log what epsilon covers, and what it does not."""
        super().say()
        _log.info(
            "%s covers what the releases reveal of a client's scores, given the "
            "models; it does not cover the training of the models on the client's data",
            Guarantee(CLIENT).text(self.settings.epsilon, self.settings.delta),
        )
        about = self.settings.delta, self._planned.num_agents, CLIENT
        if too_large := delta_warning(*about):
            _log.warning("%s.", too_large)

    def promise(self, first_rung: int) -> Promise:
        """Return what the rungs from one on, from 0, release of a client."""
        z, num = self._planned.noise_multiplier, self._num_rungs - first_rung
        charges = (Charge(z, num_releases=num),) if num > 0 else ()
        return Promise(charges, self.private, delta=self.settings.delta)


class PrivateChooser(NoisyChooser):
    """Reads each ballot, adds the noise, and releases the mean.

    Parameters
    ----------
    settings : PrivateChoice
        Budget of all rungs together.
    num_clients, num_rungs : int
        See `NoisyChooser`.
    noise_seed : int, optional
        *Experiments only*: makes the noise repeat, which protects nobody.

    Attributes
    ----------
    release : Release
        Releases the sums of the ballots.

    Raises
    ------
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.
    """

    trust = "the server is trusted: it reads each client's ballots"

    def __init__(
        self,
        settings: PrivateChoice,
        num_clients: int,
        num_rungs: int,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(settings, num_clients, num_rungs)
        self.private = noise_seed is None
        entropy = OsEntropy() if noise_seed is None else SeededEntropy(noise_seed)
        self.release = Release(self._planned, entropy)

    def say(self) -> None:
        """Log what epsilon covers, and where there is none."""
        super().say()
        if not self.private:
            _log.warning("NOT PRIVATE: the noise can be predicted from its seed")
        if self.settings.noise_only:
            _log.warning("noise-only: ballots are zeroed, the choice is random")

    def compare(self, rung: Comparison) -> LedgerRow:
        """Return the mean of the ballots with noise."""
        asked = rung.asked
        return self.choose(asked.rung, rung.clients.ballots(asked), len(asked.trials))

    def choose(
        self, rung: int, messages: Mapping[int, Any], num_trials: int
    ) -> LedgerRow:
        """Return the mean of the ballots with noise, over all N clients.

        Parameters
        ----------
        rung : int
            Number of the rung, from 0.
        messages : mapping of slot to ndarray
            Replies of the clients, of any kind: a client may send anything.
        num_trials : int
            K >= 1, the candidates.

        Raises
        ------
        ValueError
            If more than N clients gave a ballot.
        """
        allowed = f"at least the {len(messages)} clients that gave a ballot"
        # The sum is divided by N, and one ballot more would weigh more than 1 / N.
        enough = len(messages) <= self.num_clients
        require(enough, "num_agents", self.num_clients, allowed)
        # Whatever a client says of one trial, it says no more than an honest one may.
        ballots = {slot: capped(m, num_trials) for slot, m in messages.items()}
        # Clips each ballot to norm 1, sums, and adds noise that is made for norm 1.
        scores = self.release.release(rung, ballots, num_trials)[0]
        facts = {**self.release.facts(rung), "num_ballots": len(messages)}
        return LedgerRow(rung, {"mechanism": "gaussian", **facts}, scores)
