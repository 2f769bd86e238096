"""Ballots with noise, that the server adds: it is trusted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.privacy.guarantee import Guarantee, delta_warning
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.choosers.chooser import Chooser, Comparison
from flwr_fbo.tuner.decisions.enough_voices import after_first_rung
from flwr_fbo.tuner.private_choice import PrivateChoice

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
    ballots : Ballots
        What clients say of trials.
    private : bool
        Whether its choices are differentially private.
    """

    adds_noise = True
    private = True
    ballots: Ballots

    def __init__(
        self,
        settings: PrivateChoice,
        num_clients: int,
        num_rungs: int,
    ) -> None:
        super().__init__(num_clients)
        self.settings, self.ballots = settings, settings.ballots
        self._num_rungs = num_rungs
        # All rungs together keep epsilon: their releases compose.
        self._noise_multiplier = calibrate_noise_multiplier(
            settings.epsilon, settings.delta, 1.0, num_rungs
        )

    def planned(self, num_trials: int) -> ReleaseSettings:
        """Return how ballots on K trials are released."""
        about = self.num_clients, num_trials, self._noise_multiplier
        return self.ballots.release(*about, noise_only=self.settings.noise_only)

    def say(self) -> None:
        """Log what epsilon covers, and what it does not."""
        super().say()
        unit, delta = self.ballots.unit, self.settings.delta
        _log.info(
            "%s covers what the releases reveal of %s, given the models; it does not "
            "cover the training of the models on the client's data",
            Guarantee(unit).text(self.settings.epsilon, delta),
            "a client's scores"
            if unit.protects == "client"
            else "one example's scores",
        )
        # How many examples there are is known once they have scored the first rung.
        if unit.protects == "client" and (
            too_large := delta_warning(delta, self.num_clients, unit)
        ):
            _log.warning("%s.", too_large)

    def say_of(self, row: LedgerRow, sizes: tuple[int, ...]) -> None:
        """Log, too, if examples are too few for epsilon, or too many for delta."""
        super().say_of(row, sizes)
        if row.iteration == 0:
            for line in after_first_rung(row, sizes, self.settings):
                _log.warning(line)

    def promise(self, first_rung: int) -> Promise:
        """Return what the rungs from one on, from 0, release of a client."""
        z, num = self._noise_multiplier, self._num_rungs - first_rung
        charges = (Charge(z, num_releases=num),) if num > 0 else ()
        delta, unit = self.settings.delta, self.ballots.unit
        return Promise(charges, self.private, delta=delta, unit=unit)

    def scored(
        self, row: LedgerRow, num_ballots: int, num_examples: Mapping[int, int]
    ) -> LedgerRow:
        """Return a rung's scores, of a released mean of ballots, with their facts.

        Parameters
        ----------
        row : LedgerRow
            What was released.
        num_ballots : int
            Number of ballots in it.
        num_examples : mapping of int to int
            Examples of each client in it, as far as it says.
        """
        facts = {"mechanism": "gaussian", **row.facts, "num_ballots": num_ballots}
        counted = self.examples
        if counted is None:
            return LedgerRow(row.iteration, facts, row.vectors)
        # Who claims more than a client may counts as one that has the most.
        most = counted.max_examples
        total = sum(min(max(n, 0), most) for n in num_examples.values())
        # What makes a score a difference of means, in parts of the range.
        scale = self.num_clients / max(total, 1)
        facts |= {
            "num_examples": total,
            "num_without_examples": sum(n <= 0 for n in num_examples.values()),
            "sensitivity": facts["sensitivity"] * scale,
            "noise_std": [std * scale for std in facts["noise_std"]],
        }
        return LedgerRow(row.iteration, facts, row.vectors * scale)


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
    release : callable
        Returns what releases the sums of ballots on so many trials.

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
        self._entropy: Entropy = (
            OsEntropy() if noise_seed is None else SeededEntropy(noise_seed)
        )
        self.release: Callable[[int], Release] = self._release

    def _release(self, num_trials: int) -> Release:
        return Release(self.planned(num_trials), self._entropy)

    def say(self) -> None:
        """Log what epsilon covers, and where there is none."""
        super().say()
        if not self.private:
            _log.warning("NOT PRIVATE: the noise can be predicted from its seed")
        if self.settings.noise_only:
            _log.warning("noise-only: ballots are zeroed, the choice is random")

    def compare(self, rung: Comparison) -> LedgerRow:
        """Return the mean of the ballots with noise."""
        asked, clients = rung.asked, rung.clients
        ballots, num_trials = clients.ballots(asked), len(asked.trials)
        return self.choose(asked.rung, ballots, num_trials, clients.num_examples)

    def choose(
        self,
        rung: int,
        messages: Mapping[int, Any],
        num_trials: int,
        num_examples: Mapping[int, int] | None = None,
    ) -> LedgerRow:
        """Return the scores: the mean of the ballots with noise, over all N clients.

        Parameters
        ----------
        rung : int
            Number of the rung, from 0.
        messages : mapping of slot to ndarray
            Replies of the clients, of any kind: a client may send anything.
        num_trials : int
            K >= 1, the candidates.
        num_examples : mapping of slot to int, optional
            Examples that each client says it has, where one is protected.

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
        counts = {slot: (num_examples or {}).get(slot, 0) for slot in messages}
        ballots = {
            slot: self.ballots.capped(m, num_trials, counts[slot])
            for slot, m in messages.items()
        }
        release = self.release(num_trials)
        # Clips each ballot, sums, and adds noise that is made for such ballots.
        mean = release.release(rung, ballots, num_trials)[0]
        row = LedgerRow(rung, release.facts(rung), mean)
        return self.scored(row, len(messages), counts)
